// CUB's single-phase algorithms in memory of the allocator. Needs CCCL 3.1 or newer.
#include <gtest/gtest.h>

#include <cstddef>
#include <cub/device/device_reduce.cuh>
#include <memory>

#include "cachalot/buffers.h"
#include "cachalot/cub_environment.h"
#include "cachalot/simulated_device.h"

namespace cachalot {
namespace {

#if CCCL_VERSION >= 3001000
static_assert(cuda::mr::resource_with<CubMemory, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<CubMemory, cuda::mr::host_accessible>);
#endif

struct Simulated {
  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator{{device}};
};

TEST(CubMemory, FollowsTheStreamsOfItsCalls) {
  Simulated world;
  const Stream first = world.device->new_stream();
  const Stream second = world.device->new_stream();
  CubMemory memory(world.allocator, 0);
  void* const block = memory.allocate(cuda::stream_ref{first}, 1000, 512);
  world.device->launch(second, 1'000'000);
  memory.deallocate(cuda::stream_ref{second}, block, 1000, 512);
  EXPECT_NE(memory.allocate(cuda::stream_ref{first}, 1000), block) << "work of the other stream still uses it";
  EXPECT_THROW((void)memory.allocate(cuda::stream_ref{first}, 1000, 1024), InvalidArgument);
  EXPECT_TRUE(memory == CubMemory(world.allocator, 0));
  memory.deallocate_sync(memory.allocate_sync(100), 100);
}

TEST(CubEnvironment, RefusesAStreamOfAnotherDevice) {
  Simulated world;
  Simulated elsewhere;
  EXPECT_THROW(CubEnvironment(world.allocator, elsewhere.device->new_stream()), InvalidArgument);
  EXPECT_THROW(CubEnvironment(world.allocator, nullptr, 1), InvalidArgument);
}

TEST(CubEnvironmentOnGpu, GivesAReductionItsStreamAndTemporaryMemory) {
  const auto devices = cuda_devices();
  if (devices.empty()) GTEST_SKIP() << "no GPU here: CUB's algorithms are not run";
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    CachingAllocator allocator(devices);
    const Buffer<int> in(allocator, 1 << 20, stream);
    const Buffer<int> out(allocator, 1, stream);
    const auto before = allocator.memory_stats().allocation.all.allocated;
    const std::size_t held = allocator.memory_allocated();
    const CubEnvironment environment(allocator, stream);
    ASSERT_EQ(cub::DeviceReduce::Sum(in.data(), out.data(), 1 << 20, environment), cudaSuccess);
    EXPECT_GT(allocator.memory_stats().allocation.all.allocated, before);
    EXPECT_EQ(allocator.memory_allocated(), held);
    EXPECT_EQ(allocator.validate(), "");
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace cachalot
