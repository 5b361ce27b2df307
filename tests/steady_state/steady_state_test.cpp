// In the steady state the allocator allocates no host memory: operator new is new_calls.count. A program of its own, because it
// replaces operator new for all of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "tests/steady_state/replaced_new.h"

namespace cachalot {
namespace {

class SteadyState : public testing::Test {
 protected:
  void* allocate(std::size_t bytes, Stream stream = nullptr) {
    new_calls.counting = true;
    void* ptr = allocator.allocate(bytes, 0, stream);
    new_calls.counting = false;
    return ptr;
  }
  void deallocate(void* ptr) {
    new_calls.counting = true;
    allocator.deallocate(ptr);
    new_calls.counting = false;
  }
  void record_stream(void* ptr, Stream stream) {
    new_calls.counting = true;
    allocator.record_stream(ptr, stream);
    new_calls.counting = false;
  }

  // Host allocations of `rounds` rounds, after as many to get used to it. The allocator's tables, which come straight
  // from the operating system, must not grow either.
  template <typename Round>
  std::size_t allocations_in_steady_state(int rounds, Round round) {
    for (int i = 0; i < rounds; ++i) round();
    const std::size_t tables = allocator.metadata_bytes();
    new_calls.count = 0;
    for (int i = 0; i < rounds; ++i) round();
    EXPECT_EQ(allocator.metadata_bytes(), tables);
    return new_calls.count;
  }

  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator{{std::make_shared<QuietDevice>(device)}};
};

TEST_F(SteadyState, CountsAllocationsAtAll) {
  EXPECT_GT(allocations_in_steady_state(1,
                                        [&] {
                                          new_calls.counting = true;
                                          const auto picture = allocator.snapshot();
                                          const std::vector<int> some(100);
                                          new_calls.counting = false;
                                        }),
            0u);
}

TEST_F(SteadyState, TheHotPairAllocatesNothing) {
  for (const std::size_t bytes : {std::size_t{512}, 4 * kKiB, kMiB, 8 * kMiB, 12 * kMiB, 100 * kMiB}) {
    EXPECT_EQ(allocations_in_steady_state(1000, [&] { deallocate(allocate(bytes)); }), 0u) << bytes;
  }
}

TEST_F(SteadyState, ABurstAllocatesNothing) {
  EXPECT_EQ(allocations_in_steady_state(5,
                                        [&] {
                                          std::vector<void*> live;
                                          for (int i = 0; i < 10'000; ++i) live.push_back(allocate(1024));
                                          for (std::size_t i = 0; i < live.size(); i += 2) deallocate(live[i]);
                                          for (std::size_t i = 1; i < live.size(); i += 2) deallocate(live[i]);
                                        }),
            0u);
}

TEST_F(SteadyState, ChurnAllocatesNothing) {
  EXPECT_EQ(allocations_in_steady_state(3,
                                        [&] {
                                          std::mt19937_64 random(5);
                                          std::uniform_real_distribution<double> log(9, 24);
                                          std::vector<void*> live(4096, nullptr);
                                          for (int i = 0; i < 50'000; ++i) {
                                            void*& slot = live[random() % live.size()];
                                            deallocate(slot);
                                            slot = allocate(static_cast<std::size_t>(std::exp2(log(random))));
                                          }
                                          for (void* ptr : live) deallocate(ptr);
                                        }),
            0u);
}

TEST_F(SteadyState, FreesThatWaitForStreamsAllocateNothing) {
  const Stream home = device->new_stream();
  const std::array<Stream, 3> others = {device->new_stream(), device->new_stream(), device->new_stream()};
  EXPECT_EQ(allocations_in_steady_state(500,
                                        [&] {
                                          for (const Stream other : others) {
                                            void* once = allocate(4096, home);
                                            record_stream(once, other);
                                            void* everywhere = allocate(3 * kMiB, home);
                                            for (const Stream each : others) record_stream(everywhere, each);
                                            device->launch(other, 5000);
                                            deallocate(once);
                                            deallocate(everywhere);
                                            device->advance(2000);
                                          }
                                        }),
            0u);
}

// At most 160 bytes per block, or 1 % of the memory it covers where that is more; the reported figure is the memory
// taken.
TEST_F(SteadyState, IsReachedWithLittleMetadata) {
  constexpr std::size_t kBlocks = 50'000;
  for (const std::size_t bytes :
       {kKiB / 2, kKiB, 7 * kKiB / 2, 15 * kKiB / 2, 8 * kKiB, 12 * kKiB, 40 * kKiB, kMiB, 3 * kMiB}) {
    SimulatedDevice::Config config;
    config.memory_bytes = std::size_t{1} << 40;
    CachingAllocator many({std::make_shared<SimulatedDevice>(config)});
    const std::size_t before = many.metadata_bytes();
    for (std::size_t i = 0; i < kBlocks; ++i) many.allocate(bytes);
    EXPECT_LE(many.metadata_bytes() - before, kBlocks * std::max<std::size_t>(160, bytes / 100)) << bytes;
    EXPECT_GE(many.metadata_bytes() - before, kBlocks * 64) << bytes;
  }
}

TEST_F(SteadyState, StatisticsAllocateNothing) {
  deallocate(allocate(1000));
  EXPECT_EQ(allocations_in_steady_state(100,
                                        [&] {
                                          new_calls.counting = true;
                                          DeviceStats stats = allocator.memory_stats();
                                          if (stats.num_ooms != 0) std::abort();
                                          new_calls.counting = false;
                                        }),
            0u);
}

TEST_F(SteadyState, HistoryAllocatesNothingOnceItsRingIsFull) {
  allocator.record_history({.max_entries = 1000});
  EXPECT_EQ(allocations_in_steady_state(1000, [&] { deallocate(allocate(1000)); }), 0u);
}

}  // namespace
}  // namespace cachalot
