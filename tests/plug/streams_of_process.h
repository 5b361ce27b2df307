// The plug-in takes it for granted that streams live as long as the process, as PyTorch's do.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>

namespace cachalot {

inline const std::array<cudaStream_t, 3>& streams_of_process() {
  static const std::array<cudaStream_t, 3> streams = [] {
    std::array<cudaStream_t, 3> made{};
    for (cudaStream_t& stream : made) EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    return made;
  }();
  return streams;
}

}  // namespace cachalot
