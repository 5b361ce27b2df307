// SharedHandles list the memory that this process exported, the memory of other processes that is open here, and the
// GPUs that may access the device's mappings.
#pragma once

#include <vector>

#include "base/device_lock.h"
#include "device/sharing.h"

CACHALOT_BEGIN

// All members are guarded by the growth mutex alone: driver calls use them while the device's mutex is released.
struct SharedHandles {
  explicit SharedHandles(Device& device) : exported(device), imported(device) {}

  std::vector<int> peers CACHALOT_GUARDED_BY(growth_lock);
  ExportedHandles exported CACHALOT_GUARDED_BY(growth_lock);
  ImportedMemory imported CACHALOT_GUARDED_BY(growth_lock);
};

CACHALOT_END
