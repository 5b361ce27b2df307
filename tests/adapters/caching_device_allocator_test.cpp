// The replacement of CUB's allocator: what CUB documents of its class, as tables, over simulated devices.
#include "cachalot/caching_device_allocator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

using Cache = CachingDeviceAllocator;

// Makes a cache of small bins (2, 4, 8 … 1024 bytes) that keeps up to 4096 bytes of each device.
struct CacheWorld {
  TwoDevices memory;
  Cache cache{memory.allocator, 2, 1, 10, 4096};
};

std::size_t live_bytes(Cache& cache, int device = 0) { return cache.cached_bytes[device].live; }
std::size_t free_bytes(Cache& cache, int device = 0) { return cache.cached_bytes[device].free; }

TEST(CachingDeviceAllocator, HasTheDefaultsThatCubDocuments) {
  TwoDevices memory;
  const Cache cache(memory.allocator);
  EXPECT_EQ(cache.bin_growth, 8u);
  EXPECT_EQ(cache.min_bin, 3u);
  EXPECT_EQ(cache.max_bin, 7u);
  EXPECT_EQ(cache.min_bin_bytes, 512u);
  EXPECT_EQ(cache.max_bin_bytes, 2u << 20);
  EXPECT_EQ(cache.max_cached_bytes, 6'291'455u);
  EXPECT_FALSE(cache.skip_cleanup);
  EXPECT_FALSE(cache.debug);
}

TEST(CachingDeviceAllocator, RoundsARequestUpToItsBin) {
  TwoDevices memory;
  Cache cache(memory.allocator);
  struct Row {
    std::size_t bytes, live;
    unsigned int bin;
  };
  const std::vector<Row> rows = {
      {0, 512, 3},
      {1, 512, 3},
      {512, 512, 3},
      {513, 4096, 4},
      {4097, 32768, 5},
      {32769, 262144, 6},
      {262145, 2097152, 7},
      {2097152, 2097152, 7},
      {2097153, 2097153, Cache::INVALID_BIN},
      {10'000'000, 10'000'000, Cache::INVALID_BIN},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.bytes);
    void* block = nullptr;
    ASSERT_EQ(cache.DeviceAllocate(0, &block, row.bytes), cudaSuccess);
    EXPECT_NE(block, nullptr);
    EXPECT_EQ(live_bytes(cache), row.live);
    EXPECT_EQ(cache.live_blocks.begin()->bin, row.bin);
    EXPECT_EQ(cache.DeviceFree(0, block), cudaSuccess);
    EXPECT_EQ(free_bytes(cache), row.bin == Cache::INVALID_BIN ? 0 : row.live) << "only binned blocks are cached";
    EXPECT_EQ(cache.FreeAllCached(), cudaSuccess);
  }
}

// One row is one call and what the books say afterwards.
struct Step {
  const char* what;
  std::function<cudaError_t()> call;
  std::size_t live_blocks, live_bytes, cached_blocks, cached_bytes;
};

void run(Cache& cache, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    SCOPED_TRACE(step.what);
    EXPECT_EQ(step.call(), cudaSuccess);
    EXPECT_EQ(cache.live_blocks.size(), step.live_blocks);
    EXPECT_EQ(live_bytes(cache), step.live_bytes);
    EXPECT_EQ(cache.cached_blocks.size(), step.cached_blocks);
    EXPECT_EQ(free_bytes(cache), step.cached_bytes);
  }
}

TEST(CachingDeviceAllocator, CachesWhatIsFreedUpToItsLimit) {
  CacheWorld world;
  Cache& cache = world.cache;
  std::map<char, void*> block;
  const auto allocate = [&](char name, std::size_t bytes) {
    return [&, name, bytes] { return cache.DeviceAllocate(0, &block[name], bytes); };
  };
  const auto free = [&](char name) { return [&, name] { return cache.DeviceFree(0, block[name]); }; };
  run(cache, {
                 {"a", allocate('a', 1024), 1, 1024, 0, 0},
                 {"b", allocate('b', 1000), 2, 2048, 0, 0},
                 {"c", allocate('c', 5000), 3, 7048, 0, 0},
                 {"c is too large for a bin", free('c'), 2, 2048, 0, 0},
                 {"a is cached", free('a'), 1, 1024, 1, 1024},
                 {"a is another bin's", allocate('d', 512), 2, 1536, 1, 1024},
                 {"a is reused", allocate('e', 700), 3, 2560, 0, 0},
                 {"the limit falls", [&] { return cache.SetMaxCachedBytes(1100); }, 3, 2560, 0, 0},
                 {"e fits", free('e'), 2, 1536, 1, 1024},
                 {"b does not fit", free('b'), 1, 512, 1, 1024},
                 {"the limit rises", [&] { return cache.SetMaxCachedBytes(Cache::INVALID_SIZE); }, 1, 512, 1, 1024},
                 {"d fits", free('d'), 0, 0, 2, 1536},
                 {"the limit frees nothing", [&] { return cache.SetMaxCachedBytes(0); }, 0, 0, 2, 1536},
                 {"all goes", [&] { return cache.FreeAllCached(); }, 0, 0, 0, 0},
             });
  EXPECT_EQ(block['e'], block['a']);
  EXPECT_EQ(world.memory.allocator.memory_reserved(), 0u) << "FreeAllCached keeps nothing from the device";
}

TEST(CachingDeviceAllocator, GivesABlockToItsStreamAtOnceAndToOthersWhenItsWorkIsDone) {
  CacheWorld world;
  SimulatedDevice& device = *world.memory.device[0];
  const Stream first = device.new_stream();
  const Stream second = device.new_stream();
  void* block = nullptr;
  void* other = nullptr;
  ASSERT_EQ(world.cache.DeviceAllocate(0, &block, 100, first), cudaSuccess);
  const void* const memory = block;
  device.launch(first, 1'000'000);
  ASSERT_EQ(world.cache.DeviceFree(0, block), cudaSuccess);
  ASSERT_EQ(world.cache.DeviceAllocate(0, &block, 100, first), cudaSuccess);
  EXPECT_EQ(block, memory);
  ASSERT_EQ(world.cache.DeviceFree(0, block), cudaSuccess);
  ASSERT_EQ(world.cache.DeviceAllocate(0, &other, 100, second), cudaSuccess);
  EXPECT_NE(other, memory);
  device.advance(2'000'000);
  ASSERT_EQ(world.cache.DeviceAllocate(0, &block, 100, second), cudaSuccess);
  EXPECT_EQ(block, memory);
  EXPECT_EQ(world.cache.DeviceFree(0, block), cudaSuccess);
  EXPECT_EQ(world.cache.DeviceFree(0, other), cudaSuccess);
}

// The memory behind it must not go to the first stream while work of the second uses it.
TEST(CachingDeviceAllocator, TellsTheHeapWhichStreamsUseABlock) {
  CacheWorld world;
  SimulatedDevice& device = *world.memory.device[0];
  const Stream first = device.new_stream();
  const Stream second = device.new_stream();
  void* block = nullptr;
  ASSERT_EQ(world.cache.DeviceAllocate(0, &block, 100, first), cudaSuccess);
  ASSERT_EQ(world.cache.DeviceFree(0, block), cudaSuccess);
  const void* const memory = block;
  ASSERT_EQ(world.cache.DeviceAllocate(0, &block, 100, second), cudaSuccess);
  ASSERT_EQ(block, memory);
  device.launch(second, 1'000'000);
  world.cache.SetMaxCachedBytes(0);
  ASSERT_EQ(world.cache.DeviceFree(0, block), cudaSuccess);
  void* const next = world.memory.allocator.allocate(100, 0, first);
  EXPECT_NE(next, memory);
  world.memory.allocator.deallocate(next);
}

TEST(CachingDeviceAllocator, KeepsDevicesApart) {
  CacheWorld world;
  void* here = nullptr;
  void* there = nullptr;
  ASSERT_EQ(world.cache.DeviceAllocate(0, &here, 100), cudaSuccess);
  ASSERT_EQ(world.cache.DeviceAllocate(1, &there, 100), cudaSuccess);
  EXPECT_EQ(world.memory.allocator.device_of(there), 1);
  EXPECT_EQ(live_bytes(world.cache, 1), 128u);
  EXPECT_EQ(world.cache.DeviceFree(0, there), cudaErrorInvalidValue);
  EXPECT_EQ(world.cache.DeviceFree(1, there), cudaSuccess);
  EXPECT_EQ(free_bytes(world.cache, 1), 128u);
  EXPECT_EQ(free_bytes(world.cache, 0), 0u);
  EXPECT_EQ(world.cache.DeviceFree(0, here), cudaSuccess);
}

TEST(CachingDeviceAllocator, FreesCachedBlocksOfTheDeviceBeforeItGivesUp) {
  TwoDevices memory(64 * kMiB);
  Cache cache(memory.allocator, 2, 1, 30, Cache::INVALID_SIZE);
  std::vector<void*> blocks(3);
  for (void*& block : blocks) ASSERT_EQ(cache.DeviceAllocate(0, &block, 16 * kMiB), cudaSuccess);
  void* there = nullptr;
  ASSERT_EQ(cache.DeviceAllocate(1, &there, 16 * kMiB), cudaSuccess);
  for (void* const block : blocks) ASSERT_EQ(cache.DeviceFree(0, block), cudaSuccess);
  ASSERT_EQ(cache.DeviceFree(1, there), cudaSuccess);
  void* large = nullptr;
  EXPECT_EQ(cache.DeviceAllocate(0, &large, 60 * kMiB), cudaSuccess) << "a bin of 64 MiB, which all of the device is";
  EXPECT_EQ(free_bytes(cache, 0), 0u);
  EXPECT_EQ(free_bytes(cache, 1), 16 * kMiB) << "another device's blocks stay";
  void* more = nullptr;
  EXPECT_EQ(cache.DeviceAllocate(0, &more, 16 * kMiB), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cache.live_blocks.size(), 1u);
  EXPECT_EQ(cache.DeviceFree(0, large), cudaSuccess);
}

// The callback is that of a program that wants cached blocks back before the heap asks the device.
TEST(CachingDeviceAllocator, MayBeUsedByACallbackOfItsHeap) {
  TwoDevices memory(64 * kMiB);
  Cache cache(memory.allocator, 2, 1, 30, Cache::INVALID_SIZE);
  int calls = 0;
  memory.allocator.add_free_memory_callback([&] {
    ++calls;
    return cache.FreeAllCached() == cudaSuccess;
  });
  void* block = nullptr;
  ASSERT_EQ(cache.DeviceAllocate(0, &block, 32 * kMiB), cudaSuccess);
  ASSERT_EQ(cache.DeviceFree(0, block), cudaSuccess);
  EXPECT_EQ(cache.DeviceAllocate(0, &block, 64 * kMiB), cudaSuccess);
  EXPECT_GE(calls, 1);
  EXPECT_EQ(cache.DeviceFree(0, block), cudaSuccess);
}

TEST(CachingDeviceAllocator, ServesThreadsAtOnce) {
  CacheWorld world;
  std::atomic<int> failures{0};
  const auto work = [&](unsigned int seed) {
    const Stream stream = world.memory.device[0]->new_stream();
    std::mt19937 random(seed);
    std::vector<void*> blocks;
    for (int step = 0; step < 2000; ++step) {
      if (blocks.size() < 8 && random() % 2 == 0) {
        blocks.push_back(nullptr);
        failures += world.cache.DeviceAllocate(0, &blocks.back(), 1 + random() % 2000, stream) == cudaSuccess ? 0 : 1;
      } else if (!blocks.empty()) {
        failures += world.cache.DeviceFree(0, blocks.back()) == cudaSuccess ? 0 : 1;
        blocks.pop_back();
      }
    }
    for (void* const block : blocks) failures += world.cache.DeviceFree(0, block) == cudaSuccess ? 0 : 1;
  };
  std::vector<std::thread> threads;
  for (unsigned int seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(world.cache.live_blocks.empty());
  EXPECT_EQ(live_bytes(world.cache), 0u);
  EXPECT_EQ(world.cache.FreeAllCached(), cudaSuccess);
}

TEST(CachingDeviceAllocator, ReturnsTheErrorOfACallThatFailsAndNoSuccess) {
  struct Row {
    DeviceCall call;
    int code;
  };
  for (const Row row : {Row{DeviceCall::malloc, 700}, Row{DeviceCall::event_create, 999}}) {
    SCOPED_TRACE(to_string(row.call));
    CacheWorld world;
    world.memory.device[0]->set_faults({{.call = row.call, .out_of_memory = false, .code = row.code, .repeat = true}});
    void* block = &world;
    EXPECT_EQ(world.cache.DeviceAllocate(0, &block, 100), static_cast<cudaError_t>(row.code));
    EXPECT_EQ(block, nullptr);
    EXPECT_TRUE(world.cache.live_blocks.empty());
    EXPECT_EQ(live_bytes(world.cache), 0u);
    world.memory.device[0]->set_faults({});
    EXPECT_EQ(world.cache.DeviceAllocate(0, &block, 100), cudaSuccess);
    world.memory.device[0]->set_faults({{.call = DeviceCall::event_record, .out_of_memory = false, .code = 700}});
    EXPECT_EQ(world.cache.DeviceFree(0, block), cudaErrorIllegalAddress);
    EXPECT_EQ(world.cache.live_blocks.size(), 1u) << "after an error the block is as before";
    world.memory.device[0]->set_faults({});
    EXPECT_EQ(world.cache.DeviceFree(0, block), cudaSuccess);
  }
}

TEST(CachingDeviceAllocator, RefusesWhatIsNotItsOwn) {
  CacheWorld world;
  void* block = nullptr;
  int elsewhere = 0;
  ASSERT_EQ(world.cache.DeviceAllocate(0, &block, 100), cudaSuccess);
  EXPECT_EQ(world.cache.DeviceAllocate(2, &block, 100), cudaErrorInvalidDevice);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(world.cache.DeviceAllocate(-2, &block, 100), cudaErrorInvalidDevice);
  EXPECT_EQ(world.cache.DeviceAllocate(0, nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(world.cache.DeviceFree(0, &elsewhere), cudaErrorInvalidValue);
  EXPECT_EQ(world.cache.DeviceFree(0, nullptr), cudaSuccess);
  EXPECT_EQ(world.cache.DeviceAllocate(0, &block, Cache::INVALID_SIZE), cudaErrorMemoryAllocation);
  EXPECT_EQ(world.cache.live_blocks.size(), 1u);
  EXPECT_CONTAINS(refusal([&] { Cache(world.memory.allocator, 1, 1, 10, 100); }), "bin_growth is 1");
}

TEST(CachingDeviceAllocator, FreesItsCacheAtItsEndUnlessToldNotTo) {
  TwoDevices memory;
  void* kept = nullptr;
  {
    Cache cache(memory.allocator);
    ASSERT_EQ(cache.DeviceAllocate(0, &kept, 100), cudaSuccess);
    ASSERT_EQ(cache.DeviceFree(0, kept), cudaSuccess);
    EXPECT_EQ(memory.allocator.memory_allocated(), 512u);
  }
  EXPECT_EQ(memory.allocator.memory_allocated(), 0u);
  {
    Cache cache(memory.allocator, /*skip_cleanup=*/true);
    ASSERT_EQ(cache.DeviceAllocate(0, &kept, 100), cudaSuccess);
    ASSERT_EQ(cache.DeviceFree(0, kept), cudaSuccess);
  }
  EXPECT_EQ(memory.allocator.memory_allocated(), 512u);
  memory.allocator.deallocate(kept);
}

TEST(CachingDeviceAllocator, PrintsItsEventsOnRequest) {
  TwoDevices memory;
  Cache cache(memory.allocator, false, /*debug=*/true);
  testing::internal::CaptureStdout();
  void* block = nullptr;
  cache.DeviceAllocate(0, &block, 100);
  cache.DeviceFree(0, block);
  cache.DeviceAllocate(0, &block, 100);
  cache.SetMaxCachedBytes(0);
  cache.DeviceFree(0, block);
  const std::string printed = testing::internal::GetCapturedStdout();
  for (const char* const event : {"device 0 allocated 512 bytes", "device 0 cached 512 bytes",
                                  "device 0 reused 512 bytes", "device 0 freed 512 bytes"}) {
    EXPECT_CONTAINS(printed, event);
  }
}

TEST(CachingDeviceAllocator, FindsPowers) {
  EXPECT_EQ(Cache::IntPow(8, 3), 512u);
  EXPECT_EQ(Cache::IntPow(2, 0), 1u);
  unsigned int power = 0;
  std::size_t rounded = 0;
  Cache::NearestPowerOf(power, rounded, 8, 513);
  EXPECT_EQ(power, 4u);
  EXPECT_EQ(rounded, 4096u);
  Cache::NearestPowerOf(power, rounded, 8, ~std::size_t{0});
  EXPECT_EQ(power, 64u);
  EXPECT_EQ(rounded, ~std::size_t{0});
}

}  // namespace
}  // namespace cachalot
