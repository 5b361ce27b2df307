// SharedHandles are a device's ties to others: what was exported to other processes, what of theirs is open here, and which
// GPUs its mappings are open to.
#pragma once

#include <vector>

#include "base/device_lock.h"
#include "device/sharing.h"

namespace cachalot {

// Guarded by the growth mutex alone: driver calls use it while the device's mutex is let go.
struct SharedHandles {
  explicit SharedHandles(Device& device) : exported(device), imported(device) {}

  std::vector<int> peers CACHALOT_GUARDED_BY(growth_lock);
  ExportedHandles exported CACHALOT_GUARDED_BY(growth_lock);
  ImportedMemory imported CACHALOT_GUARDED_BY(growth_lock);
};

}  // namespace cachalot
