#include "base/check.h"
#include "cachalot/kernels.h"
#if CACHALOT_HAS_CUDA_KERNELS
#include "device/cuda_device.h"
#include "kernels/cuda_kernels.h"
#endif

namespace cachalot {

std::unique_ptr<Kernels> kernels_for(std::shared_ptr<Device> device) {
  CACHALOT_REQUIRE(device != nullptr, "kernels_for needs a device, not null");
#if CACHALOT_HAS_CUDA_KERNELS
  if (dynamic_cast<CudaDevice*>(device.get()) != nullptr) return std::make_unique<CudaKernels>(std::move(device));
#endif
  return host_kernels(std::move(device));
}

}  // namespace cachalot
