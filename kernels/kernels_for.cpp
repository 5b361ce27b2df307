#include "base/check.h"
#include "cachalot/kernels.h"
#if CACHALOT_HAS_CUDA
#include "kernels/cuda_kernels.h"
#endif

CACHALOT_BEGIN

std::unique_ptr<Kernels> kernels_for(std::shared_ptr<Device> device) {
  CACHALOT_REQUIRE(device != nullptr, "kernels_for needs a device, not null");
#if CACHALOT_HAS_CUDA
  if (auto gpu = std::dynamic_pointer_cast<CudaDevice>(device)) {
    if (auto kernels = cuda_kernels(std::move(gpu))) return kernels;
  }
#endif
  return host_kernels(std::move(device));
}

CACHALOT_END
