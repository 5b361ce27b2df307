// Uncached serves requests while caching is off: each allocation is a call to the device, and so is its free.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "base/host_memory.h"
#include "heap/heap_state.h"
#include "heap/limits.h"

CACHALOT_BEGIN

class Uncached {
 public:
  Uncached(HeapState& state, MemoryPressure& pressure) : state_(state), pressure_(pressure) {}
  Uncached(const Uncached&) = delete;
  Uncached& operator=(const Uncached&) = delete;

  // Requires that nothing was allocated.
  void use_managed_memory() { malloc_ = &Device::malloc_managed; }

  // Throws OutOfMemory, CudaError.
  void* allocate(std::size_t bytes, Held& held, Alignment alignment = {}) CACHALOT_HELD;
  // These take the lock themselves.
  void set_caching_enabled(bool enabled);
  // Returns false if `ptr` was not allocated here. Throws CudaError; the allocation is then live as before.
  bool deallocate(const void* ptr);
  bool contains(const void* ptr) const;

 private:
  HeapState& state_;
  MemoryPressure& pressure_;
  std::optional<Address> (Device::*malloc_)(std::size_t) = &Device::malloc;  // as the heap's segments
  // The program's addresses, with those that the device gave for them.
  Map<Address, Address> live_ CACHALOT_GUARDED_BY(device_lock);
};

CACHALOT_END
