// An allocator whose slow paths, segments and allocations a tool that reads NVTX sees. Run it by such a tool:
//   nsys profile --trace=cuda,nvtx nvtx
//   compute-sanitizer --nvtx=yes nvtx
#include <cstdio>

#include "cachalot/nvtx.h"

int main() {
  cachalot::CachingAllocator allocator(cachalot::cuda_devices());
  if (allocator.device_count() == 0) {
    std::puts("no GPU here");
    return 0;
  }
  cachalot::Nvtx nvtx(allocator);
  std::puts(nvtx.has_tool() ? "a tool listens" : "no tool listens: allocations cost what they cost without this");

  void* const weights = allocator.allocate(1 << 20);  // the range "grow", a segment and a region
  nvtx.name(weights, "weights");
  void* const scratch = allocator.allocate(1000);  // a region of its own, though the segment is the same
  allocator.deallocate(scratch);                   // the region ends
  allocator.deallocate(weights);
  allocator.empty_cache();  // the range "empty_cache", and the segment ends
  return allocator.memory_reserved() == 0 ? 0 : 1;
}
