// TensorRT's allocator: the contract that TensorRT states for nvinfer1::IGpuAsyncAllocator, through its interface alone.
#include "cachalot/tensorrt.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

struct TensorRtWorld {
  explicit TensorRtWorld(std::size_t device_bytes = kGiB) : world(device_bytes) {}
  World world;
  std::vector<std::string> errors;
  TensorRtAllocator adapter{world.allocator, 0,
                            [this](const std::exception& error) { errors.push_back(error.what()); }};
  nvinfer1::IGpuAllocator& memory = adapter;  // as TensorRT has it
};

TEST(TensorRt, AllocatesForItsStreamAndFreesInItsOrder) {
  TensorRtWorld trt;
  const Stream stream = trt.world.device->new_stream();
  void* const block = trt.memory.allocateAsync(1000, 256, 0, stream);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(address(block) % 256, 0u);
  trt.world.launch(stream);
  EXPECT_TRUE(trt.memory.deallocateAsync(block, stream));
  EXPECT_EQ(trt.memory.allocateAsync(1000, 0, 0, stream), block) << "the same stream may have it at once";
  EXPECT_TRUE(trt.memory.deallocateAsync(block, stream));
  EXPECT_TRUE(trt.errors.empty());
}

// "It is critical that it not actually free the memory until the current stream position is reached."
TEST(TensorRt, DoesNotReuseMemoryBeforeTheStreamOfTheFreeComesThere) {
  TensorRtWorld trt;
  const Stream first = trt.world.device->new_stream();
  const Stream second = trt.world.device->new_stream();
  void* const block = trt.memory.allocateAsync(1000, 0, 0, first);
  trt.world.launch(second);
  EXPECT_TRUE(trt.memory.deallocateAsync(block, second));
  void* const other = trt.memory.allocateAsync(1000, 0, 0, first);
  EXPECT_NE(other, block);
  trt.world.pass(2000);
  void* const later = trt.memory.allocateAsync(1000, 0, 0, first);
  EXPECT_EQ(later, block);
  EXPECT_TRUE(trt.memory.deallocateAsync(other, first));
  EXPECT_TRUE(trt.memory.deallocateAsync(later, first));
}

TEST(TensorRt, ReturnsNullForNothingAndForWhatItCannotGive) {
  TensorRtWorld trt(64 * kMiB);
  EXPECT_EQ(trt.memory.allocateAsync(0, 0, 0, nullptr), nullptr);
  EXPECT_TRUE(trt.errors.empty()) << "0 bytes are no error";
  EXPECT_EQ(trt.memory.allocateAsync(kGiB, 0, 0, nullptr), nullptr);
  ASSERT_EQ(trt.errors.size(), 1u);
  EXPECT_CONTAINS(trt.errors[0], "out of memory");
  EXPECT_EQ(trt.memory.allocateAsync(100, 1024, 0, nullptr), nullptr);
  EXPECT_EQ(trt.memory.allocateAsync(100, 48, 0, nullptr), nullptr);
  ASSERT_EQ(trt.errors.size(), 3u);
  EXPECT_EQ(trt.errors[1], "an alignment of 1024: memory is aligned to powers of two up to 512");
  EXPECT_EQ(trt.world.allocated(), 0u);
}

TEST(TensorRt, FreesNullAndRefusesWhatIsNotLive) {
  TensorRtWorld trt;
  EXPECT_TRUE(trt.memory.deallocateAsync(nullptr, nullptr));
  void* const block = trt.memory.allocateAsync(1000, 0, 0, nullptr);
  EXPECT_FALSE(trt.memory.deallocateAsync(after(block, 1), nullptr));
  EXPECT_TRUE(trt.memory.deallocateAsync(block, nullptr));
  EXPECT_FALSE(trt.memory.deallocateAsync(block, nullptr));
  EXPECT_EQ(trt.errors.size(), 2u);
}

TEST(TensorRt, ResizesInPlaceOrSaysThatItCannot) {
  TensorRtWorld trt;
  void* const block = trt.memory.allocateAsync(1000, 256, 0, nullptr);
  EXPECT_EQ(trt.memory.reallocate(block, 256, 1000), block);
  EXPECT_EQ(trt.memory.reallocate(block, 256, 10), block);
  EXPECT_EQ(trt.memory.reallocate(block, 256, 1001), nullptr);
  EXPECT_TRUE(trt.memory.deallocateAsync(block, nullptr)) << "the allocation must still be valid";
}

TEST(TensorRt, ServesTheDeprecatedSynchronousCalls) {
  TensorRtWorld trt;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  void* const block = trt.memory.allocate(1000, 256, 0);
  EXPECT_NE(block, nullptr);
  EXPECT_TRUE(trt.memory.deallocate(block));
#pragma GCC diagnostic pop
  EXPECT_EQ(trt.world.allocated(), 0u);
}

TEST(TensorRt, ServesADeviceOfItsOwn) {
  TwoDevices world;
  TensorRtAllocator adapter(world.allocator, 1);
  nvinfer1::IGpuAllocator& memory = adapter;
  void* const block = memory.allocateAsync(1000, 0, 0, nullptr);
  EXPECT_EQ(world.allocator.device_of(block), 1);
  EXPECT_TRUE(memory.deallocateAsync(block, nullptr));
  EXPECT_CONTAINS(refusal([&] { TensorRtAllocator(world.allocator, 2); }), "2");
}

// The work is that of an engine: each context has a stream, and layers take and give back memory, from several threads.
TEST(TensorRt, ServesThreadsAtOnce) {
  TensorRtWorld trt(8 * kGiB);
  std::atomic<int> failures{0};
  const auto infer = [&](unsigned int seed) {
    const Stream stream = trt.world.device->new_stream();
    std::mt19937 random(seed);
    std::vector<void*> layers;
    for (int step = 0; step < 2000; ++step) {
      if (layers.size() < 8 && random() % 2 == 0) {
        layers.push_back(trt.memory.allocateAsync(1 + random() % kMiB, 256, 0, stream));
        failures += layers.back() == nullptr ? 1 : 0;
      } else if (!layers.empty()) {
        failures += trt.memory.deallocateAsync(layers.back(), stream) ? 0 : 1;
        layers.pop_back();
      }
    }
    for (void* const layer : layers) failures += trt.memory.deallocateAsync(layer, stream) ? 0 : 1;
  };
  std::vector<std::thread> threads;
  for (unsigned int seed = 1; seed <= 4; ++seed) threads.emplace_back(infer, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(trt.world.allocated(), 0u);
}

}  // namespace
}  // namespace cachalot
