// The attributes of a simulated device, for the runtime and for the driver.
#pragma once

#include "simulator/models/config.h"
#include "simulator/models/cuda_abi.h"

namespace cachalot::simulator {

cudaDeviceProp device_properties(const Config& config, int ordinal);
// Returns the ratio of single precision's speed to double precision's.
int single_to_double_ratio(const GpuModel& gpu);
// By the number that cudaDeviceAttr and CUdevice_attribute share. Throws cudaErrorInvalidValue for one that does not exist.
int device_attribute(const Config& config, int ordinal, int attribute);
// The identity of a device by its number on the machine (Config::machine_number), which every process sees alike.

// Returns "0000:01:00.0".
std::string pci_bus_id(int machine_number);
int pci_bus(int machine_number);
CUuuid device_uuid(int machine_number);
// Returns "GPU-63616368-616c-6f74-2d73-696d2d677000".
std::string uuid_text(int machine_number);

}  // namespace cachalot::simulator
