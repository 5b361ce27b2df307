#include "heap/saved_memory.h"

#include <utility>

#include "cachalot/errors.h"

CACHALOT_BEGIN

// Nobody else uses it any more.
SavedMemory::~SavedMemory() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  for (void* memory : spare_) {
    try {
      state_.device->host_free(memory);
    } catch (const CudaError&) {  // the device may be gone at exit; there is nobody left to tell
    }
  }
}

void SavedMemory::forget(PrivatePool& pool, HandleId id, const Held& /*held*/) {
  const auto saved = pool.saved.find(id);
  if (saved == pool.saved.end()) return;
  spare_.push_back(saved->second.host);
  pool.saved.erase(saved);
}

void SavedMemory::forget_all(PrivatePool& pool, const Held& /*held*/) {
  for (const auto& [id, saved] : std::exchange(pool.saved, {})) spare_.push_back(saved.host);
}

void SavedMemory::free(Held& held) {
  for (void* memory : std::exchange(spare_, {})) {
    try {
      const Unlocked unlocked(held);
      state_.device->host_free(memory);
    } catch (const CudaError&) {
      spare_.push_back(memory);
    }
  }
}

CACHALOT_END
