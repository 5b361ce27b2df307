// A program of CUDA 12: it declares functions as CUDA 12 does, and is linked with a libcudart.so.12. Its exit status is how many of
// its checks failed.
#include <cstddef>
#include <cstdio>
#include <cstring>

extern "C" {
int cudaRuntimeGetVersion(int* version);
int cudaMalloc(void** pointer, std::size_t bytes);
int cudaFree(void* pointer);
int cudaGetDeviceProperties_v2(void* properties, int device);
int cudaPointerGetAttributes(void* attributes, const void* pointer);
int cudaMemPrefetchAsync(const void* pointer, std::size_t bytes, int device, void* stream);
int cudaMallocManaged(void** pointer, std::size_t bytes, unsigned int flags);
}

namespace {

int failed = 0;

void check(bool fulfilled, const char* what) {
  if (fulfilled) return;
  std::fprintf(stderr, "failed: %s\n", what);
  ++failed;
}

}  // namespace

int main() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version) == 0 && version == 12090, "the runtime is of CUDA 12.9");

  void* pointer = nullptr;
  check(cudaMalloc(&pointer, 1 << 20) == 0, "cudaMalloc");
  struct {
    unsigned char of_cuda_12[24];
    unsigned char behind[40];
  } attributes;
  std::memset(&attributes, 0xa5, sizeof(attributes));
  check(cudaPointerGetAttributes(&attributes, pointer) == 0, "cudaPointerGetAttributes");
  void* device_pointer = nullptr;
  std::memcpy(&device_pointer, attributes.of_cuda_12 + 8, sizeof(device_pointer));
  check(device_pointer == pointer, "attributes have the pointer");
  check(attributes.behind[0] == 0xa5 && attributes.behind[39] == 0xa5, "attributes take 24 bytes");
  check(cudaFree(pointer) == 0, "cudaFree");

  unsigned char properties[1032];
  check(cudaGetDeviceProperties_v2(properties, 0) == 0, "cudaGetDeviceProperties_v2");
  std::size_t total_bytes = 0;
  std::memcpy(&total_bytes, properties + 288, sizeof(total_bytes));
  check(total_bytes == std::size_t{64} << 20, "the device has 64 MiB");

  check(cudaMallocManaged(&pointer, 1 << 20, 1) == 0, "cudaMallocManaged");
  check(cudaMemPrefetchAsync(pointer, 1 << 20, 0, nullptr) == 0, "cudaMemPrefetchAsync");
  check(cudaFree(pointer) == 0, "cudaFree of managed memory");
  return failed;
}
