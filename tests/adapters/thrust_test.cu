// Thrust in memory of the allocator: its allocations, their streams, and refusals.
#include <gtest/gtest.h>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include "cachalot/simulated_device.h"
#include "cachalot/thrust.h"

namespace cachalot {
namespace {

using Ints = ThrustAllocator<int>;

static_assert(std::is_same_v<std::allocator_traits<Ints>::rebind_alloc<char>, ThrustAllocator<char>>);
static_assert(std::is_same_v<Ints::pointer, thrust::device_ptr<int>>);

struct Simulated {
  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator{{device}};
};

TEST(ThrustAllocator, AllocatesElementsForItsStream) {
  Simulated world;
  const Stream stream = world.device->new_stream();
  Ints ints(world.allocator, stream);
  const auto memory = ints.allocate(100);
  EXPECT_EQ(world.allocator.requested_size(memory.get()), 400u);
  ints.deallocate(memory, 100);
  EXPECT_EQ(world.allocator.allocate(400, 0, stream), memory.get()) << "the memory was not the stream's";
  EXPECT_EQ(ints.allocate(0).get(), nullptr);
  ints.deallocate({}, 0);
}

TEST(ThrustAllocator, IsEqualToCopiesForOtherTypes) {
  Simulated world;
  Simulated elsewhere;
  const Ints ints(world.allocator);
  const ThrustAllocator<char> chars = ints;
  EXPECT_TRUE(chars == ints);
  EXPECT_TRUE(ints != Ints(world.allocator, world.device->new_stream()));
  EXPECT_TRUE(ints != Ints(elsewhere.allocator));
}

TEST(ThrustAllocator, ThrowsWhatThrustExpectsAndRefusesBadInput) {
  Simulated world;
  Simulated elsewhere;
  ThrustAllocator<double> doubles(world.allocator);
  EXPECT_THROW(doubles.allocate(std::numeric_limits<std::size_t>::max()), InvalidArgument);
  EXPECT_THROW(doubles.allocate(std::size_t{1} << 50), std::bad_alloc);
  EXPECT_THROW(Ints(world.allocator, nullptr, 1), InvalidArgument);
  EXPECT_THROW(Ints(world.allocator, elsewhere.device->new_stream()), InvalidArgument);
  EXPECT_THROW(thrust_policy_nosync(world.allocator, elsewhere.device->new_stream()), InvalidArgument);
  EXPECT_EQ(world.allocator.memory_allocated(), 0u);
}

class ThrustOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    devices_ = cuda_devices();
    if (devices_.empty()) GTEST_SKIP() << "no GPU here: Thrust's algorithms are not run";
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  static long long allocations(const CachingAllocator& allocator) {
    return allocator.memory_stats().allocation.all.allocated;
  }

  std::vector<std::shared_ptr<Device>> devices_;
  cudaStream_t stream_ = nullptr;
};

TEST_F(ThrustOnGpu, AVectorsMemoryIsTheAllocators) {
  CachingAllocator allocator(devices_);
  {
    thrust::device_vector<int, Ints> keys(1000, Ints(allocator, stream_));
    EXPECT_EQ(allocator.memory_allocated(), 4096u);
    keys.resize(2000);
    EXPECT_EQ(allocator.memory_allocated(), 8192u);
    EXPECT_EQ(allocator.device_of(thrust::raw_pointer_cast(keys.data())), 0);
  }
  EXPECT_EQ(allocator.memory_allocated(), 0u);
}

TEST_F(ThrustOnGpu, ASortsTemporaryMemoryIsTheAllocators) {
  CachingAllocator allocator(devices_);
  thrust::device_vector<int, Ints> keys(100'000, Ints(allocator, stream_));
  const long long before = allocations(allocator);
  const std::size_t held = allocator.memory_allocated();
  thrust::sort(thrust_policy_nosync(allocator, stream_), keys.begin(), keys.end());
  EXPECT_GT(allocations(allocator), before);
  const std::size_t reserved = allocator.memory_reserved();
  for (int round = 0; round < 10; ++round) {
    thrust::sort(thrust_policy_nosync(allocator, stream_), keys.begin(), keys.end());
    thrust::sort(thrust_policy(allocator, stream_), keys.begin(), keys.end());
  }
  EXPECT_EQ(allocator.memory_reserved(), reserved) << "the temporary memory was not used again";
  EXPECT_EQ(allocator.memory_allocated(), held) << "the temporary memory was not freed";
  EXPECT_EQ(allocator.validate(), "");
}

TEST_F(ThrustOnGpu, AReductionsTemporaryMemoryIsTheAllocators) {
  CachingAllocator allocator(devices_);
  thrust::device_vector<int, Ints> keys(100'000, Ints(allocator, stream_));
  const long long before = allocations(allocator);
  thrust::reduce(thrust_policy(allocator, stream_), keys.begin(), keys.end());
  EXPECT_GT(allocations(allocator), before);
}

}  // namespace
}  // namespace cachalot
