// A small CUDA program that other tests start with variables of their choice. Its argument says what it does; what it
// prints is what the test looks at.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>

namespace {

int count() {
  int devices = -1;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  std::printf("%s %d\n", cudaGetErrorName(error), devices);
  return 0;
}

int properties() {
  cudaDeviceProp prop{};
  const cudaError_t error = cudaGetDeviceProperties(&prop, 0);
  std::printf("%s %s %d.%d %zu\n", cudaGetErrorName(error), prop.name, prop.major, prop.minor,
              prop.totalGlobalMem >> 20);
  return 0;
}

// Three allocations of 1 MiB, the first freed.
int allocate() {
  void* pointers[3] = {};
  for (void*& pointer : pointers) std::printf("%s ", cudaGetErrorName(cudaMalloc(&pointer, 1 << 20)));
  std::printf("%s\n", cudaGetErrorName(cudaFree(pointers[0])));
  return 0;
}

// Pins 1 MiB twice, and frees the second twice: what could not be freed is still there.
int pin() {
  void* memory = nullptr;
  for (int i = 0; i < 2; ++i)
    std::printf("%s ", cudaGetErrorName(cudaHostAlloc(&memory, 1 << 20, cudaHostAllocDefault)));
  const cudaError_t refused = cudaFreeHost(memory);
  std::printf("%s %s\n", cudaGetErrorName(refused), cudaGetErrorName(cudaFreeHost(memory)));
  return 0;
}

// Allocates, and leaves by a child's and its own ordinary exit.
int fork_and_exit() {
  void* pointer = nullptr;
  const cudaError_t error = cudaMalloc(&pointer, 1 << 20);
  const pid_t child = fork();
  if (child == 0) return 0;
  waitpid(child, nullptr, 0);
  std::printf("%s\n", cudaGetErrorName(error));
  return 0;
}

// Calls what is not simulated, twice.
int array() {
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  cudaMallocArray(&array, &format, 16, 16, 0);
  const cudaError_t error = cudaMallocArray(&array, &format, 16, 16, 0);
  std::printf("%s %s\n", cudaGetErrorName(error), cudaGetErrorName(cudaGetLastError()));
  return 0;
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// Reads a handle as hexadecimal digits, adds 1 to the int that it shares, and says what it was.
int import(const char* digits) {
  cudaIpcMemHandle_t handle{};
  for (std::size_t i = 0; i < sizeof(handle); ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(std::string(digits + 2 * i, 2), nullptr, 16));
  const auto before = open_descriptors();
  void* pointer = nullptr;
  cudaError_t error = cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error == cudaSuccess) error = cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess);
  int value = 0;
  if (error == cudaSuccess) {
    cudaMemcpy(&value, pointer, sizeof(value), cudaMemcpyDeviceToHost);
    const int more = value + 1;
    cudaMemcpy(pointer, &more, sizeof(more), cudaMemcpyHostToDevice);
    for (int i = 0; i < 2; ++i) cudaIpcCloseMemHandle(pointer);
  }
  std::printf("%s %d, descriptors left open: %td\n", cudaGetErrorName(error), value, open_descriptors() - before);
  return 0;
}

// Calls a library's function that takes nothing, as a program does that loads it.
int call(const char* library, const char* name) {
  void* loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* function = loaded ? dlsym(loaded, name) : nullptr;
  if (!function) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  return reinterpret_cast<int (*)()>(function)();
}

}  // namespace

int main(int, char** arguments) {
  const std::string what = arguments[1];
  if (what == "count") return count();
  if (what == "properties") return properties();
  if (what == "allocate") return allocate();
  if (what == "pin") return pin();
  if (what == "fork") return fork_and_exit();
  if (what == "array") return array();
  if (what == "import") return import(arguments[2]);
  if (what == "call") return call(arguments[2], arguments[3]);
  return 2;
}
