// Memory of the page heap that other GPUs may use.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "tests/pages/testing.h"

namespace cachalot {
namespace {

struct TwoGpus : TwoDevices {
  TwoGpus() : TwoDevices(kGiB, "heap:pages,page_size_mb:2") {}

  // Returns whether GPU 1 may use each page of an allocation of GPU 0.
  bool is_open(void* ptr, std::size_t bytes) const {
    for (Address at = address(ptr); at < address(ptr) + bytes; at += 512) {
      if (device[0]->memory_at(at).value().peers != 2) return false;
    }
    return true;
  }
};

TEST(PeerAccess, OpensWhatIsMappedAndWhatComes) {
  TwoGpus two;
  void* old = two.allocator.allocate(8 * kMiB, 0);
  EXPECT_FALSE(two.is_open(old, 8 * kMiB));
  two.allocator.enable_peer_access(/*device=*/1, /*peer=*/0);
  EXPECT_TRUE(two.is_open(old, 8 * kMiB));
  EXPECT_TRUE(two.device[1]->may_access(0));
  EXPECT_FALSE(two.device[0]->may_access(1));
  const std::uint64_t calls = two.device[0]->count(DeviceCall::set_access);
  void* fresh = two.allocator.allocate(24 * kMiB, 0);
  EXPECT_TRUE(two.is_open(fresh, 24 * kMiB));
  EXPECT_EQ(two.device[0]->count(DeviceCall::set_access), calls + 1);  // for both devices at once
  two.allocator.enable_peer_access(1, 0);                              // again: nothing to do
  EXPECT_EQ(two.device[0]->count(DeviceCall::set_access), calls + 1);
  two.allocator.deallocate(old);
  two.allocator.deallocate(fresh);
}

TEST(PeerAccess, FollowsPagesThatMove) {
  TwoGpus two;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(two.allocator.allocate(8 * kMiB, 0));
  two.allocator.enable_peer_access(1, 0);
  for (std::size_t i = 0; i < blocks.size(); i += 2) two.allocator.deallocate(blocks[i]);
  void* gathered = two.allocator.allocate(32 * kMiB, 0);
  EXPECT_TRUE(two.is_open(gathered, 32 * kMiB));
}

TEST(PeerAccess, OpensWhatWakes) {
  TwoGpus two;
  two.allocator.begin_tagged("weights");
  void* asleep = two.allocator.allocate(8 * kMiB, 0);
  two.allocator.end_tagged("weights");
  void* awake = two.allocator.allocate(8 * kMiB, 0);
  two.allocator.release_physical("weights");
  two.allocator.enable_peer_access(1, 0);  // of mapped memory
  EXPECT_TRUE(two.is_open(awake, 8 * kMiB));
  two.allocator.restore_physical("weights");
  EXPECT_TRUE(two.is_open(asleep, 8 * kMiB));
  two.allocator.deallocate(asleep);
  two.allocator.deallocate(awake);
}

TEST(PeerAccess, OpensImportedMemory) {
  World world(checked(), "heap:pages");
  void* ptr = world.allocator.allocate(8 * kMiB, 0, nullptr, {.contiguous = true});
  TwoGpus two;
  void* before = two.allocator.open_shared(world.allocator.share(ptr), 0);
  two.allocator.enable_peer_access(1, 0);
  void* since = two.allocator.open_shared(world.allocator.share(ptr), 0);
  EXPECT_TRUE(two.is_open(before, 8 * kMiB));
  EXPECT_TRUE(two.is_open(since, 8 * kMiB));
}

TEST(PeerAccess, IsOfAnotherDevice) {
  TwoGpus two;
  EXPECT_CONTAINS(refusal([&] { two.allocator.enable_peer_access(1, 1); }), "peer access of device 1 to itself");
  EXPECT_CONTAINS(refusal([&] { two.allocator.enable_peer_access(0, 2); }), "device 2 is not one of the 2 devices");
}

TEST(PeerAccess, OverSegmentsIsCudasOwn) {
  TwoDevices two;
  two.allocator.enable_peer_access(0, 1);
  EXPECT_TRUE(two.device[0]->may_access(1));
  EXPECT_EQ(two.device[1]->count(DeviceCall::set_access), 0u);
}

TEST(PeerAccess, MayBeAskedForAgainWhenItFailed) {
  for (const DeviceCall call : {DeviceCall::enable_peer_access, DeviceCall::set_access}) {
    std::uint64_t injected = 0;
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(fmt::format("{} number {}", to_string(call), nth));
      TwoGpus two;
      void* large = two.allocator.allocate(8 * kMiB, 0);
      void* small = two.allocator.allocate(1000, 0);  // in another range
      for (const auto& device : two.device) {
        device->set_faults({{.call = call, .nth = nth, .out_of_memory = false, .code = 999}});
      }
      bool failed = false;
      try {
        two.allocator.enable_peer_access(1, 0);
      } catch (const CudaError&) {
        failed = true;
      }
      EXPECT_EQ(two.allocator.validate(), "");
      for (const auto& device : two.device) device->set_faults({});
      two.allocator.enable_peer_access(1, 0);
      EXPECT_TRUE(two.is_open(large, 8 * kMiB));
      EXPECT_TRUE(two.is_open(small, 1000));
      if (!failed || HasFailure()) break;
      ++injected;
    }
    EXPECT_EQ(injected, call == DeviceCall::set_access ? 2u : 1u);
  }
}

// Growth that fails with peers there is undone as without.
TEST(PeerAccess, OfMemoryThatCannotBeOpenedIsAFailedAllocation) {
  TwoGpus two;
  two.allocator.enable_peer_access(1, 0);
  two.device[0]->set_faults({{.call = DeviceCall::set_access, .nth = 1, .out_of_memory = false, .code = 999}});
  EXPECT_THROW(two.allocator.allocate(8 * kMiB, 0), CudaError);
  EXPECT_EQ(two.allocator.validate(), "");
  EXPECT_EQ(two.device[0]->used_bytes(), 0u);
  void* ptr = two.allocator.allocate(8 * kMiB, 0);
  EXPECT_TRUE(two.is_open(ptr, 8 * kMiB));
}

}  // namespace
}  // namespace cachalot
