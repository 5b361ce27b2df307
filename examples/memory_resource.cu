// A function takes its scratch from any memory resource of CCCL; here cachalot is that resource. Only the first call requests
// memory of the device.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // needed by CUDA 13.0 only
#include <cstdint>
#include <cstdio>
#include <memory>

#include "cachalot/mr.h"

namespace {

#if CACHALOT_MR_HAS_SYNC_CALLS
using DeviceMemory = cuda::mr::resource_ref<cuda::mr::device_accessible>;
void* take(DeviceMemory memory, std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
  return memory.allocate(stream, bytes, alignment);
}
void give(DeviceMemory memory, void* ptr, std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
  memory.deallocate(stream, ptr, bytes, alignment);
}
#else  // CUDA 13.0
using DeviceMemory = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
void* take(DeviceMemory memory, std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
  return memory.allocate_async(bytes, alignment, stream);
}
void give(DeviceMemory memory, void* ptr, std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
  memory.deallocate_async(ptr, bytes, alignment, stream);
}
#endif

__global__ void square(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] *= values[i];
}

// Runs a kernel on scratch memory that begins at a multiple of 2 MiB, and returns whether it does. It has no code for cachalot.
bool work(DeviceMemory memory, cudaStream_t stream) {
  constexpr int kCount = 1 << 20;
  constexpr std::size_t kAlignment = std::size_t{2} << 20;
  void* const scratch = take(memory, kCount * sizeof(float), kAlignment, stream);
  square<<<kCount / 256, 256, 0, stream>>>(static_cast<float*>(scratch), kCount);
  give(memory, scratch, kCount * sizeof(float), kAlignment,
       stream);  // at once: the next user's work comes after the kernel
  return reinterpret_cast<std::uintptr_t>(scratch) % kAlignment == 0;
}

}  // namespace

int main() {
  const auto allocator = std::make_shared<cachalot::CachingAllocator>(cachalot::cuda_devices());
  if (allocator->device_count() == 0) return std::puts("no GPU here"), 0;
  cachalot::MemoryResource resource(allocator);
  bool is_aligned = true;
  for (int i = 0; i < 100; ++i) is_aligned &= work(resource, nullptr);
  const long long asked = allocator->memory_stats().num_device_alloc;
  std::printf("100 calls, %lld requests to the device, %s\n", asked, is_aligned ? "all aligned" : "NOT aligned");
  return is_aligned && asked == 1 ? 0 : 1;
}
