// Sharing through the C API: allocations in one handle, opened by another process, used by another GPU.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "cachalot/c_api.h"
#include "tests/c_api/fresh_process.h"

namespace cachalot::testing {
namespace {

const Environment kPages = {{"CACHALOT_CONF", "heap:pages,page_size_mb:2"}, {"CACHALOT_SIM", "devices:2"}};
const Environment kSegments = {{"CACHALOT_SIM", "devices:2"}};

bool message_has(const char* part) { return std::strstr(cachalot_last_error(), part) != nullptr; }

// An ordinary allocation of 8 MiB lies in four pages; another device of the process plays the other process.
TEST(CApiSharing, OpensAnAllocationThatWasAskedForInOneHandle) {
  in_fresh_process(kPages, [] {
    void* const ptr = cachalot_malloc_with_flags(8 * kMiB, 0, nullptr, CACHALOT_CONTIGUOUS);
    ASSERT_NE(ptr, nullptr) << cachalot_last_error();
    cachalot_shared_t shared;
    ASSERT_EQ(cachalot_share(ptr, &shared), CACHALOT_OK) << cachalot_last_error();
    EXPECT_EQ(shared.kind, CACHALOT_SHARED_DESCRIPTOR);
    EXPECT_EQ(shared.handle_size, 8 * kMiB);
    EXPECT_EQ(shared.size, 8 * kMiB);
    EXPECT_EQ(shared.offset, 0u);
    struct stat status;
    EXPECT_EQ(fstat(shared.descriptor, &status), 0);
    void* const opened = cachalot_open_shared(&shared, 1);
    ASSERT_NE(opened, nullptr) << cachalot_last_error();
    EXPECT_EQ(cachalot_memory_reserved(1), 0u);
    EXPECT_EQ(cachalot_close_shared(opened), CACHALOT_OK);
    EXPECT_EQ(cachalot_close_shared(opened), CACHALOT_E_INVALID_ARGUMENT);
    cachalot_free(ptr, 8 * kMiB, 0, nullptr);
    EXPECT_STREQ(cachalot_last_error(), "");
  });
}

TEST(CApiSharing, SaysInHowManyHandlesAnAllocationLies) {
  in_fresh_process(kPages, [] {
    std::size_t size = 8 * kMiB;
    void* const scattered[3] = {cachalot_malloc_with_flags(size, 0, nullptr, CACHALOT_CONTIGUOUS),
                                cachalot_malloc_with_flags(size, 0, nullptr, CACHALOT_CONTIGUOUS),
                                cachalot_malloc(3 * size, 0, nullptr)};
    cachalot_shared_t shared;
    std::memset(&shared, 7, sizeof(shared));
    const cachalot_shared_t before = shared;
    EXPECT_EQ(cachalot_share(scattered[2], &shared), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(message_has("lies in 12 handles")) << cachalot_last_error();
    EXPECT_TRUE(message_has("CACHALOT_CONTIGUOUS")) << cachalot_last_error();
    EXPECT_EQ(std::memcmp(&shared, &before, sizeof(shared)), 0);
  });
}

TEST(CApiSharing, OpensASegment) {
  in_fresh_process(kSegments, [] {
    void* const first = cachalot_malloc(3 * kMiB, 0, nullptr);
    void* const ptr = cachalot_malloc(4 * kMiB, 0, nullptr);
    cachalot_shared_t shared;
    ASSERT_EQ(cachalot_share(ptr, &shared), CACHALOT_OK);
    EXPECT_EQ(shared.kind, CACHALOT_SHARED_SEGMENT);
    EXPECT_EQ(shared.descriptor, -1);
    EXPECT_EQ(shared.offset, 3 * kMiB);
    void* const opened = cachalot_open_shared(&shared, 1);
    ASSERT_NE(opened, nullptr) << cachalot_last_error();
    EXPECT_EQ(cachalot_close_shared(opened), CACHALOT_OK);
    cachalot_free(first, 3 * kMiB, 0, nullptr);
  });
}

TEST(CApiSharing, RefusesBadInput) {
  in_fresh_process(kPages, [] {
    EXPECT_EQ(cachalot_malloc_with_flags(512, 0, nullptr, 6), nullptr);
    EXPECT_TRUE(message_has("flags 0x6")) << cachalot_last_error();
    void* const ptr = cachalot_malloc(512, 0, nullptr);
    EXPECT_EQ(cachalot_share(ptr, nullptr), CACHALOT_E_INVALID_ARGUMENT);
    cachalot_shared_t shared;
    EXPECT_EQ(cachalot_share(nullptr, &shared), CACHALOT_E_INVALID_ARGUMENT);
    ASSERT_EQ(cachalot_share(ptr, &shared), CACHALOT_OK);
    shared.handle_size = 1000;
    EXPECT_EQ(cachalot_open_shared(&shared, 0), nullptr);
    EXPECT_TRUE(message_has("a shared handle of 1000 bytes")) << cachalot_last_error();
    shared.kind = 9;
    EXPECT_EQ(cachalot_open_shared(&shared, 0), nullptr);
    EXPECT_TRUE(message_has("kind 9")) << cachalot_last_error();
    EXPECT_EQ(cachalot_open_shared(nullptr, 0), nullptr);
  });
}

TEST(CApiSharing, EnablesPeers) {
  for (const Environment& heap : {kPages, kSegments}) {
    in_fresh_process(heap, [] {
      EXPECT_EQ(cachalot_enable_peer_access(0, 1), CACHALOT_OK);
      EXPECT_EQ(cachalot_enable_peer_access(0, 1), CACHALOT_OK);
      EXPECT_EQ(cachalot_enable_peer_access(1, 1), CACHALOT_E_INVALID_ARGUMENT);
      EXPECT_EQ(cachalot_enable_peer_access(1, 2), CACHALOT_E_INVALID_ARGUMENT);
      EXPECT_TRUE(message_has("device 2")) << cachalot_last_error();
    });
  }
}

}  // namespace
}  // namespace cachalot::testing
