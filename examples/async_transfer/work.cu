#include "examples/async_transfer/work.h"
#include "examples/common/cuda.h"

namespace async_transfer {
namespace {

constexpr unsigned int kThreads = 256;

__global__ void halve_and_add(float* values, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) values[i] = values[i] * kFactor + kAdded;
}

}  // namespace

void launch_work(float* values, std::size_t count, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned int>((count + kThreads - 1) / kThreads);
  halve_and_add<<<blocks, kThreads, 0, stream>>>(values, count);
  EXAMPLES_CHECK(cudaGetLastError());
}

}  // namespace async_transfer
