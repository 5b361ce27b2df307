// The twin: the paths' work on the host, the paths in the device's memory. Each call copies from it what it reads and to
// it what it wrote, so that a buffer in two hands at once, or one that went too early, would show in the price.
#pragma once

#include <memory>

#include "examples/lsm_pricing/backend.h"

namespace lsm {

std::unique_ptr<Backend> host_backend(std::shared_ptr<cachalot::Device> device);

}  // namespace lsm
