// Built in place of simulator/device where that folder is not there.
#include "cachalot/errors.h"
#include "device/simulated_devices.h"

CACHALOT_BEGIN

std::vector<std::shared_ptr<Device>> simulated_devices() {
  throw CudaError("cuInit", 100, "CUDA_ERROR_NO_DEVICE, and this build has no simulated devices (simulator/device)");
}

CACHALOT_END
