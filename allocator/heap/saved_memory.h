// SavedMemory is the pinned host memory that holds what sleeping pools saved, once it is no longer needed: it goes back to the
// device's driver, which may refuse it for now.
#pragma once

#include <vector>

#include "heap/heap_state.h"

namespace cachalot {

class SavedMemory {
 public:
  explicit SavedMemory(HeapState& state) : state_(state) {}
  ~SavedMemory();
  SavedMemory(const SavedMemory&) = delete;
  SavedMemory& operator=(const SavedMemory&) = delete;

  // What was saved of a handle, if anything was, is no longer needed.
  void forget(PrivatePool& pool, HandleId id, const Held& held) CACHALOT_HELD;
  void forget_all(PrivatePool& pool, const Held& held) CACHALOT_HELD;
  // Frees what is no longer needed. What the device refuses is tried again another time.
  void free(Held& held) CACHALOT_HELD;

 private:
  HeapState& state_;
  std::vector<void*> spare_ CACHALOT_GUARDED_BY(device_lock);
};

}  // namespace cachalot
