// A CUDA program: cudaMallocs each of its arguments, so many MiB, and then frees the first. Exits with 4 when one fails. A
// last argument "again" frees the first once more, and so breaks CUDA's rules. Of "while COMMAND" at the end, the command runs
// before anything is freed.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  std::vector<void*> live;
  const bool again = argc > 1 && std::strcmp(argv[argc - 1], "again") == 0;
  const char* const command = argc > 2 && std::strcmp(argv[argc - 2], "while") == 0 ? argv[argc - 1] : nullptr;
  for (int i = 1; i < argc - (again ? 1 : 0) - (command ? 2 : 0); ++i) {
    void* address = nullptr;
    if (cudaMalloc(&address, std::strtoull(argv[i], nullptr, 10) << 20) != cudaSuccess) return 4;
    live.push_back(address);
  }
  if (command) {
    const int status = std::system(command);
    if (status != 0) return 6;
  }
  if (!live.empty() && cudaFree(live.front()) != cudaSuccess) return 5;
  if (again) cudaFree(live.front());
  return 0;
}
