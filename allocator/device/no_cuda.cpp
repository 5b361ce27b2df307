// Built in place of cuda_device.cpp where there is no CUDA toolkit.
#include "cachalot/device.h"
#include "device/cuda_device.h"

CACHALOT_BEGIN

int cuda_driver_version() { return 0; }

std::vector<std::shared_ptr<Device>> cuda_devices() { return {}; }

CACHALOT_END
