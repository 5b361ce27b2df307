// Compares the replacement of CUB's allocator with CUB's own: the same calls give the same results.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cachalot/caching_device_allocator.h"
#include "tests/scale.h"

// CUB's class queries events, leaves cudaErrorNotReady as the runtime's last error, and returns it as the result of its next
// call. This replaces cudaEventQuery for it, so that the comparison is without that bug.
static cudaError_t event_query_without_last_error(cudaEvent_t event) {
  const cudaError_t result = cudaEventQuery(event);
  if (result == cudaErrorNotReady) cudaGetLastError();
  return result;
}
#define cudaEventQuery event_query_without_last_error
#include <cub/util_allocator.cuh>
#undef cudaEventQuery

namespace cachalot {
namespace {

constexpr std::size_t kLimit = 3 << 20;

// Makes each call with both allocators, and compares the results.
class Both {
 public:
  explicit Both(int devices) {
    for (int device = 0; device < devices; ++device) {
      cudaSetDevice(device);
      for (cudaStream_t& stream : streams_[device]) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
    cudaSetDevice(0);
  }
  ~Both() {
    cudaDeviceSynchronize();
    for (auto& [device, streams] : streams_) {
      for (const cudaStream_t stream : streams) cudaStreamDestroy(stream);
    }
  }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;

  void allocate(int device, std::size_t bytes, std::size_t stream_number) {
    const cudaStream_t stream = streams_[device][stream_number];
    void* theirs = nullptr;
    void* ours = nullptr;
    const cudaError_t expected = cubs_.DeviceAllocate(device, &theirs, bytes, stream);
    EXPECT_EQ(cachalots_.DeviceAllocate(device, &ours, bytes, stream), expected);
    ASSERT_EQ(expected, cudaSuccess);
    // If CUB's class reuses a cached block, ours reuses the block that was allocated and freed with it.
    const auto known = names_.find(theirs);
    if (known != names_.end() && known->second.is_cached) {
      EXPECT_EQ(ours, known->second.ours);
    }
    names_[theirs] = {ours, false};
    live_.push_back({device, theirs, ours, stream});
  }
  void free(std::size_t index) {
    const Live live = live_[index];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    const std::size_t cached = cubs_.cached_blocks.size();
    EXPECT_EQ(cubs_.DeviceFree(live.device, live.theirs), cudaSuccess);
    EXPECT_EQ(cachalots_.DeviceFree(live.device, live.ours), cudaSuccess);
    names_[live.theirs].is_cached = cubs_.cached_blocks.size() > cached;
  }
  void work(std::size_t index) {
    cudaSetDevice(live_[index].device);
    EXPECT_EQ(cudaMemsetAsync(live_[index].theirs, 0, 1, live_[index].stream), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(live_[index].ours, 0, 1, live_[index].stream), cudaSuccess);
    cudaSetDevice(0);
  }
  void free_all_cached() {
    EXPECT_EQ(cubs_.FreeAllCached(), cudaSuccess);
    EXPECT_EQ(cachalots_.FreeAllCached(), cudaSuccess);
    names_.clear();
    for (const Live& live : live_) names_[live.theirs] = {live.ours, false};
  }
  void compare() {
    EXPECT_EQ(cachalots_.live_blocks.size(), cubs_.live_blocks.size());
    EXPECT_EQ(cachalots_.cached_blocks.size(), cubs_.cached_blocks.size());
    for (auto& [device, streams] : streams_) {
      EXPECT_EQ(cachalots_.cached_bytes[device].live, cubs_.cached_bytes[device].live);
      EXPECT_EQ(cachalots_.cached_bytes[device].free, cubs_.cached_bytes[device].free);
    }
  }
  std::size_t live() const { return live_.size(); }

 private:
  struct Live {
    int device;
    void* theirs;
    void* ours;
    cudaStream_t stream;
  };
  struct Name {
    void* ours;
    bool is_cached;
  };
  cub::CachingDeviceAllocator cubs_{8, 3, 7, kLimit};
  CachingDeviceAllocator cachalots_{8, 3, 7, kLimit};
  std::map<int, std::vector<cudaStream_t>> streams_{{0, {nullptr, nullptr}}, {1, {nullptr, nullptr}}};
  std::map<void*, Name> names_;
  std::vector<Live> live_;
};

TEST(CubComparisonOnGpu, TheSameCallsGiveTheSameResults) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2)
    GTEST_SKIP() << "this needs two GPUs, or simulated ones";
  if (std::getenv("CACHALOT_SIM") == nullptr)
    GTEST_SKIP() << "whether work is done must not depend on the moment: this needs simulated GPUs";
  const std::uint64_t seed = seed_or(7);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  Both both(devices);
  for (int step = 0; step < static_cast<int>(scaled(3000)); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const std::size_t choice = below(100);
    if (choice < 45 || both.live() == 0) {
      both.allocate(static_cast<int>(below(2)), std::size_t{1} << below(23), below(2));
    } else if (choice < 90) {
      both.free(below(both.live()));
    } else if (choice < 98) {
      both.work(below(both.live()));
    } else if (choice == 98) {
      both.free_all_cached();
    } else {
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    both.compare();
    if (testing::Test::HasFailure()) return;
  }
  while (both.live() != 0) both.free(0);
  both.compare();
}

TEST(CubComparisonOnGpu, TheCurrentDeviceIsTheDefault) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2)
    GTEST_SKIP() << "this needs two GPUs, or simulated ones";
  CachingDeviceAllocator cache;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* block = nullptr;
  EXPECT_EQ(cache.DeviceAllocate(&block, 100), cudaSuccess);
  EXPECT_EQ(cache.live_blocks.begin()->device, 1);
  EXPECT_EQ(cache.DeviceFree(block), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}  // namespace
}  // namespace cachalot
