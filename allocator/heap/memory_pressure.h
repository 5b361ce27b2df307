// MemoryPressure asks the program to free memory when a request runs short, and reports an out-of-memory error to it.
//
// Callbacks and observers run without the lock and may call the allocator.
#pragma once

#include <vector>

#include "cachalot/out_of_memory.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

class MemoryPressure {
 public:
  explicit MemoryPressure(HeapState& state) : state_(state) {}
  MemoryPressure(const MemoryPressure&) = delete;
  MemoryPressure& operator=(const MemoryPressure&) = delete;

  // These lock by themselves. Throw InvalidArgument for an empty function.
  void add_out_of_memory_observer(OutOfMemoryObserver observer);
  void add_refusal_observer(RefusalObserver observer);
  void add_free_memory_callback(FreeMemoryCallback callback);
  // Sets the function that is called when a request is about to fail, and returns true if it freed something. The guard
  // empties its quarantine there.
  void set_last_resort(FreeMemoryCallback last_resort);

  // Return true if something was freed.
  bool run_callbacks(Held& held) CACHALOT_HELD;
  bool run_last_resort(Held& held) CACHALOT_HELD;
  void tell(const OutOfMemoryReport& report, Held& held) CACHALOT_HELD;
  void tell_of_refusal(const RefusalReport& report, Held& held) CACHALOT_HELD;

 private:
  HeapState& state_;
  std::vector<OutOfMemoryObserver> observers_ CACHALOT_GUARDED_BY(device_lock);
  std::vector<RefusalObserver> refusal_observers_ CACHALOT_GUARDED_BY(device_lock);
  std::vector<FreeMemoryCallback> callbacks_ CACHALOT_GUARDED_BY(device_lock);
  FreeMemoryCallback last_resort_ CACHALOT_GUARDED_BY(device_lock);  // empty: none
};

CACHALOT_END
