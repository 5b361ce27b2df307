// A CUDA program: cudaMallocs each of its arguments, so many MiB, and then frees the first. Exits with 4 when one fails. A
// last argument "again" frees the first once more, and so breaks CUDA's rules.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  std::vector<void*> live;
  const bool again = argc > 1 && std::strcmp(argv[argc - 1], "again") == 0;
  for (int i = 1; i < argc - (again ? 1 : 0); ++i) {
    void* address = nullptr;
    if (cudaMalloc(&address, std::strtoull(argv[i], nullptr, 10) << 20) != cudaSuccess) return 4;
    live.push_back(address);
  }
  if (!live.empty() && cudaFree(live.front()) != cudaSuccess) return 5;
  if (again) cudaFree(live.front());
  return 0;
}
