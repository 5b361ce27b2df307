// Sharing opens one device's memory to other processes and GPUs, and theirs to this device.
//
// Its functions lock by themselves. Contracts are those of CachingAllocator's methods.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "cachalot/shared_memory.h"
#include "device/sharing.h"
#include "growth/growth.h"
#include "growth/recovery.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

class Sharing {
 public:
  // `growth`: the growth of the default pools.
  Sharing(HeapState& state, SharedHandles& handles, Recovery& recovery, Growth& growth)
      : state_(state), handles_(handles), recovery_(recovery), growth_(growth) {}
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  // Return nullopt if `ptr` is not a live allocation of `block`.
  std::optional<std::size_t> handle_count(const Block& block, const void* ptr) const;
  std::optional<SharedMemory> share(const Block& block, const void* ptr);
  // Returns where the segment or the first handle begins.
  Address open_shared(const SharedMemory& memory);
  bool close_shared(Address base);  // false: it is not open
  // enable_access_to lets work of this device use the malloc memory of `peer`; open_to lets work of `peer` use this device's
  // page heap.
  void enable_access_to(int peer);
  void open_to(int peer);

 private:
  void call_or_recover(const std::function<void()>& call, const char* purpose, std::size_t bytes,
                       Growing& growing) CACHALOT_GROWING;

  HeapState& state_;
  SharedHandles& handles_;
  Recovery& recovery_;
  Growth& growth_;
};

CACHALOT_END
