// RMM's fixed_size_memory_resource, the nearest thing to a tensor pool that another library has: bench/pool's row of it.
// A program of its own, since RMM calls the CUDA runtime, which is simulated here.
#include <cuda_runtime_api.h>
#include <malloc.h>

#include <cstddef>
#include <memory>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/fixed_size_memory_resource.hpp>

#include "bench/pool_costs.h"

namespace {

using namespace cachalot::bench;

class FixedSizeSubject {
 public:
  struct Held {
    void* pointer = nullptr;
  };

  FixedSizeSubject() {
    if (cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess) throw rmm::bad_alloc("no stream");
    const std::size_t before = mallinfo2().uordblks;
    resource_ = std::make_unique<Resource>(&cuda_, kPooledBytes, kPoolSlots);
    host_bytes_ = mallinfo2().uordblks - before;
  }
  Held take() { return {resource_->allocate(kPooledBytes, stream_)}; }
  void give_back(Held& held) { resource_->deallocate(held.pointer, kPooledBytes, stream_); }
  std::size_t host_bytes_each() const { return host_bytes_ / kPoolSlots; }

 private:
  using Resource = rmm::mr::fixed_size_memory_resource<rmm::mr::cuda_memory_resource>;

  rmm::mr::cuda_memory_resource cuda_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Resource> resource_;
  std::size_t host_bytes_ = 0;
};

}  // namespace

int main() {
  start_a_thread();
  FixedSizeSubject subject;
  print_costs("RMM 25.4, fixed_size", subject);
}
