// A CUDA program that knows nothing of the simulator, compiled by nvcc: registration, launches by <<<>>>, device variables,
// and of which code the kernel's would be that runs.
#include <cstdio>
#include <cstdlib>

__constant__ float scale;
__device__ int counters[4];

__global__ void add(float* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] += scale;
}

#define CHECK(call)                                                             \
  if (const cudaError_t error = call; error != cudaSuccess) {                   \
    std::fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(error)); \
    std::exit(1);                                                               \
  }

// All of it, for those that load the program as a library.
extern "C" int program() {
  constexpr int kCount = 1 << 16;
  float* values = nullptr;
  CHECK(cudaMalloc(&values, kCount * sizeof(float)));
  const float two = 2;
  CHECK(cudaMemcpyToSymbol(scale, &two, sizeof(two)));
  float read = 0;
  CHECK(cudaMemcpyFromSymbol(&read, scale, sizeof(read)));
  const int numbers[4] = {1, 2, 3, 4};
  CHECK(cudaMemcpyToSymbol(counters, numbers, sizeof(numbers)));
  int third = 0;
  CHECK(cudaMemcpyFromSymbol(&third, counters, sizeof(third), 2 * sizeof(int)));
  add<<<kCount / 256, 256>>>(values, kCount);
  CHECK(cudaGetLastError());
  add<<<kCount / 256, 2048>>>(values, kCount);
  const cudaError_t too_wide = cudaGetLastError();
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(values));
  cudaFuncAttributes code{};
  CHECK(cudaFuncGetAttributes(&code, add));
  std::printf("%g %d %s %d %d\n", read, third, cudaGetErrorName(too_wide), code.binaryVersion, code.ptxVersion);
  return 0;
}

int main() { return program(); }
