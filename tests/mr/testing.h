// The common parts of the memory resources' tests: an allocator over the simulated CUDA runtime, and calls of a resource by the
// names of any CCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cachalot/mr.h"
#include "cachalot/simulator.h"

namespace cachalot {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;
constexpr std::int64_t kMillisecond = 1'000'000;

class ResourceTest : public ::testing::Test {
 protected:
  ResourceTest() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  }
  ~ResourceTest() override {
    EXPECT_EQ(allocator->validate(), "");
    for (cudaStream_t made : {stream, other}) {
      allocator->stream_ends(made);
      EXPECT_EQ(cudaStreamDestroy(made), cudaSuccess);
    }
  }
  // Work on a stream that takes a millisecond.
  static void launch(cudaStream_t on) { ASSERT_EQ(cachalot_sim_launch(on, kMillisecond), 0); }

  std::shared_ptr<CachingAllocator> allocator = std::make_shared<CachingAllocator>(cuda_devices());
  MemoryResource resource{allocator};
  cudaStream_t stream = nullptr;
  cudaStream_t other = nullptr;
};

template <typename Resource>
void* allocate(const Resource& resource, std::size_t bytes, cudaStream_t stream, std::size_t alignment = 256) {
  return allocate_from(resource, {bytes, alignment, stream, false});
}
template <typename Resource>
void deallocate(const Resource& resource, void* ptr, std::size_t bytes, cudaStream_t stream,
                std::size_t alignment = 256) {
  deallocate_to(resource, ptr, {bytes, alignment, stream, false});
}
template <typename Resource>
void* allocate_sync(const Resource& resource, std::size_t bytes, std::size_t alignment = 256) {
  return allocate_from(resource, {bytes, alignment, nullptr, true});
}
template <typename Resource>
void deallocate_sync(const Resource& resource, void* ptr, std::size_t bytes, std::size_t alignment = 256) {
  deallocate_to(resource, ptr, {bytes, alignment, nullptr, true});
}

inline std::uintptr_t address(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

// Returns the message that an action throws, which must be an Error.
template <typename Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace cachalot
