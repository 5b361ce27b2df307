// A CUDA program: cudaMallocs each of its arguments, so many MiB, and then frees the first. Exits with 4 when one fails.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  std::vector<void*> live;
  for (int i = 1; i < argc; ++i) {
    void* address = nullptr;
    if (cudaMalloc(&address, std::strtoull(argv[i], nullptr, 10) << 20) != cudaSuccess) return 4;
    live.push_back(address);
  }
  if (!live.empty() && cudaFree(live.front()) != cudaSuccess) return 5;
  return 0;
}
