#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "cachalot/c_api.h"
#include "tests/c_api/fresh_process.h"
#include "tests/c_api/testing.h"

namespace cachalot::testing {
namespace {

// Keeps the parts that are there, as a library that registers them would.
struct Registered {
  std::map<std::pair<int, void*>, cachalot_segment_t> parts;
  std::vector<cachalot_segment_t> ended;
};

void on_segment(const cachalot_segment_t* segment, void* context) {
  auto& registered = *static_cast<Registered*>(context);
  const std::pair at{segment->device, segment->address};
  if (segment->begins != 0) {
    EXPECT_TRUE(registered.parts.emplace(at, *segment).second) << "it begins twice";
  } else {
    registered.ended.push_back(*segment);
    registered.parts.erase(at);
  }
}

void on_other_segment(const cachalot_segment_t* /*segment*/, void* /*context*/) {}

void add(Registered& registered) {
  ASSERT_EQ(cachalot_add_segment_callback(on_segment, &registered), CACHALOT_OK) << cachalot_last_error();
}

std::size_t bytes_of(const Registered& registered, int device = 0) {
  std::size_t bytes = 0;
  for (const auto& [at, part] : registered.parts) bytes += at.first == device ? part.size : 0;
  return bytes;
}

TEST(CSegments, AreToldAsTheyBeginAndEndOnEachDevice) {
  in_fresh_process({{"CACHALOT_SIM", "devices:2"}}, [] {
    void* const old = cachalot_malloc(30 * kMiB, 0, nullptr);
    Registered registered;
    add(registered);
    ASSERT_EQ(registered.parts.size(), 1u);
    const cachalot_segment_t& told = registered.parts.begin()->second;
    EXPECT_EQ(told.address, old);
    EXPECT_EQ(told.size, 30 * kMiB);
    EXPECT_EQ(told.device, 0);
    EXPECT_EQ(told.is_plain, 1);
    void* const fresh = cachalot_malloc(50 * kMiB, 1, nullptr);
    EXPECT_EQ(bytes_of(registered, 1), 50 * kMiB);
    cachalot_free(old, 30 * kMiB, 0, nullptr);
    EXPECT_EQ(registered.ended.size(), 0u) << "a cached segment is held";
    EXPECT_EQ(cachalot_empty_cache(-1), CACHALOT_OK);
    ASSERT_EQ(registered.ended.size(), 1u);
    EXPECT_EQ(registered.ended[0].address, old);
    EXPECT_EQ(registered.ended[0].begins, 0);
    EXPECT_EQ(registered.ended[0].is_plain, 1);
    cachalot_free(fresh, 50 * kMiB, 1, nullptr);
  });
}

TEST(CSegments, ArePlainOrPages) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages"}}, [] {
    void* const pages = cachalot_malloc(30 * kMiB, 0, nullptr);
    void* const plain = cachalot_malloc_with_flags(30 * kMiB, 0, nullptr, CACHALOT_PLAIN);
    Registered registered;
    add(registered);
    ASSERT_EQ(registered.parts.size(), 2u);
    EXPECT_EQ(registered.parts.at({0, pages}).is_plain, 0);
    EXPECT_EQ(registered.parts.at({0, plain}).is_plain, 1);
    cachalot_free(pages, 30 * kMiB, 0, nullptr);
    cachalot_free(plain, 30 * kMiB, 0, nullptr);
    EXPECT_EQ(cachalot_empty_cache(0), CACHALOT_OK);
    EXPECT_EQ(registered.parts.size(), 0u);
    EXPECT_EQ(cachalot_memory_reserved(0), 0u);
  });
}

TEST(CSegments, EndInSleepAndBeginWhenTheyWake) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages"}}, [] {
    EXPECT_EQ(cachalot_begin_tagged("weights", 0), CACHALOT_OK);
    void* const weights = cachalot_malloc(30 * kMiB, 0, nullptr);
    EXPECT_EQ(cachalot_end_tagged("weights", 0), CACHALOT_OK);
    Registered registered;
    add(registered);
    EXPECT_EQ(bytes_of(registered), 30 * kMiB);
    EXPECT_EQ(cachalot_release_physical("weights", CACHALOT_KEEP_NOTHING, nullptr, 0), CACHALOT_OK);
    std::size_t ended = 0;
    for (const cachalot_segment_t& part : registered.ended) ended += part.size;
    EXPECT_EQ(ended, 30 * kMiB);
    Registered later;
    add(later);
    EXPECT_EQ(bytes_of(later), 0u);
    EXPECT_EQ(cachalot_restore_physical("weights", 0), CACHALOT_OK);
    EXPECT_EQ(bytes_of(later), 30 * kMiB);
    EXPECT_EQ(later.parts.begin()->second.address, weights);
  });
}

TEST(CSegments, CallNoCallbackThatWasRemoved) {
  in_fresh_process([] {
    Registered first;
    Registered second;
    add(first);
    add(second);
    EXPECT_EQ(cachalot_remove_segment_callback(on_segment, &first), CACHALOT_OK);
    cachalot_malloc(30 * kMiB, 0, nullptr);
    EXPECT_EQ(first.parts.size(), 0u);
    EXPECT_EQ(second.parts.size(), 1u);
    add(first);
    EXPECT_EQ(first.parts.size(), 1u) << "it may be added again";
  });
}

TEST(CSegments, RefuseCallbacksByName) {
  in_fresh_process([] {
    Registered registered;
    EXPECT_EQ(cachalot_add_segment_callback(nullptr, &registered), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_add_segment_callback: callback is NULL; it must be a function"}));
    EXPECT_EQ(cachalot_remove_segment_callback(on_segment, &registered), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_remove_segment_callback", "was not added with context 0x", "add it first"}));
    add(registered);
    EXPECT_EQ(cachalot_add_segment_callback(on_segment, &registered), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_add_segment_callback", "was added with context 0x", "remove it first"}));
    EXPECT_EQ(cachalot_remove_segment_callback(on_other_segment, &registered), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_remove_segment_callback(on_segment, nullptr), CACHALOT_E_INVALID_ARGUMENT);
    cachalot_malloc(30 * kMiB, 0, nullptr);
    EXPECT_EQ(registered.parts.size(), 1u);
  });
}

TEST(CSegments, RefuseAForkedChild) {
  in_fresh_process([] {
    Registered registered;
    add(registered);
    cachalot_malloc(30 * kMiB, 0, nullptr);
    const int status = status_of_fresh_process({{"CACHALOT_SIMULATE", "1"}}, [&] {
      EXPECT_EQ(cachalot_add_segment_callback(on_other_segment, nullptr), CACHALOT_E_INVALID_ARGUMENT);
      EXPECT_TRUE(error_names({"fork"}));
      EXPECT_EQ(cachalot_remove_segment_callback(on_segment, &registered), CACHALOT_E_INVALID_ARGUMENT);
    });
    EXPECT_EQ(status, 0);
    EXPECT_EQ(cachalot_remove_segment_callback(on_segment, &registered), CACHALOT_OK);
  });
}

}  // namespace
}  // namespace cachalot::testing
