// For the tests of the simulator: they are CUDA programs like any other, and see it only through CUDA's functions.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)
#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

namespace cachalot {

inline constexpr std::size_t kMib = std::size_t{1} << 20;
inline constexpr std::int64_t kMillisecond = 1'000'000;  // of the simulated clock, in ns

// Every test begins with nothing allocated, no error pending and device 0.
class SimulatorTest : public testing::Test {
 protected:
  SimulatorTest() {
    cudaSetDevice(0);
    used_before_ = used_bytes();
    cudaGetLastError();
  }
  ~SimulatorTest() override {
    cudaSetDevice(0);
    EXPECT_EQ(used_bytes(), used_before_) << "device memory leaked";
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

  static std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_CUDA(cudaMemGetInfo(&free, &total));
    return free;
  }
  static std::size_t used_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_CUDA(cudaMemGetInfo(&free, &total));
    return total - free;
  }

 private:
  std::size_t used_before_ = 0;
};

// A function of the driver, as programs find it.
template <typename Function>
Function* driver(const char* name, Function*) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result));
  EXPECT_EQ(result, cudaDriverEntryPointSuccess) << name;
  return reinterpret_cast<Function*>(found);
}
#define DRIVER(function) ::cachalot::driver(#function, static_cast<decltype(::function)*>(nullptr))

}  // namespace cachalot
