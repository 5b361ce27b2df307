// The devices of a program that has no GPU.
#pragma once

#include <memory>
#include <vector>

#include "cachalot/device.h"

CACHALOT_BEGIN

// Returns devices that are simulated as the environment variable CACHALOT_SIM says: one of 80 GiB where it is not set. Throws
// InvalidArgument that names the variable, the key and the value.
std::vector<std::shared_ptr<Device>> simulated_devices();

CACHALOT_END
