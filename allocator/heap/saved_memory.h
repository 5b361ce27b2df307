// SavedMemory frees the pinned host memory in which sleeping pools saved their content. It keeps what the driver
// refuses to free, and tries again.
#pragma once

#include <vector>

#include "heap/heap_state.h"

CACHALOT_BEGIN

class SavedMemory {
 public:
  explicit SavedMemory(HeapState& state) : state_(state) {}
  ~SavedMemory();
  SavedMemory(const SavedMemory&) = delete;
  SavedMemory& operator=(const SavedMemory&) = delete;

  // Marks the saved content of a handle, if there is any, as no longer needed.
  void forget(PrivatePool& pool, HandleId id, const Held& held) CACHALOT_HELD;
  void forget_all(PrivatePool& pool, const Held& held) CACHALOT_HELD;
  // Frees what is no longer needed. What the device refuses is tried again at the next call.
  void free(Held& held) CACHALOT_HELD;

 private:
  HeapState& state_;
  std::vector<void*> spare_ CACHALOT_GUARDED_BY(device_lock);
};

CACHALOT_END
