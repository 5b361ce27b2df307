// What the environment variables of libcachalot.so say: which devices, and which options.
#pragma once

#include <memory>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "cachalot/options.h"

CACHALOT_BEGIN

// A bad environment variable.
class BadEnvironment : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Returns the GPUs, or simulated devices (CACHALOT_SIMULATE, CACHALOT_SIM). Throws
// BadEnvironment, and CudaError where a driver has no GPU to show.
std::vector<std::shared_ptr<Device>> devices_of_environment();

// Returns the options (CACHALOT_CONF, CACHALOT_DEBUG), and warns of those without effect. Throws BadEnvironment.
Options options_of_environment();

// Returns whether CACHALOT_PUBLISH asks for a statistics page. Throws BadEnvironment.
bool publishes_by_environment();

CACHALOT_END
