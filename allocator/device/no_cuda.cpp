// Built in place of cuda_device.cpp where there is no CUDA toolkit.
#include "cachalot/device.h"

namespace cachalot {

std::vector<std::shared_ptr<Device>> cuda_devices() { return {}; }

}  // namespace cachalot
