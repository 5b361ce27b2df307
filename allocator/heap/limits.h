// Limits sets the limits of one device's held memory, which the Ledger keeps. It remembers the setting of each limit and
// its setter, and calls the callback of the soft limit.
//
// A limit that the option `limit` measures from the free memory is pending until the allocator first needs memory of the
// device. An earlier measurement would make a context on GPUs that the program never uses.
//
// Thread safety: functions without a token take the lock themselves; none calls the device or the program under a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cachalot/events.h"
#include "cachalot/options.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

class Limits {
 public:
  // The setter of a limit.
  enum class Setter : std::uint8_t { option, call };

  explicit Limits(HeapState& state) : state_(state) {}
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

  // Throws InvalidArgument unless the fraction is in [0, 1].
  void set_fraction(double fraction, Setter setter);
  // Limits held bytes from now on, in addition to the fraction. Memory that is held already stays. Throws CudaError, and
  // then changes nothing.
  void set(const MemoryLimit& limit, Setter setter);
  // Throws InvalidArgument if `callback` is empty and there is a limit; CudaError.
  void set_soft(const MemoryLimit& limit, SoftLimitCallback callback);

  // Measures a pending limit. Throws CudaError; it is then still pending.
  void measure(Held& held) CACHALOT_HELD;
  // Calls the callback of the soft limit, if the calling thread has crossed it. Throws what the callback throws.
  void tell_if_crossed(Held& held) CACHALOT_HELD;
  // Returns the limit that holds and its setting, as in `limit:20GiB` or `set_limit("20GiB")`; "" without a limit.
  std::string holding(const Held& held) const CACHALOT_HELD;

 private:
  void set_measured(const MemoryLimit& limit, std::size_t bytes, Setter setter, const Held& held) CACHALOT_HELD;
  std::size_t measured(const MemoryLimit& limit, Held& held) CACHALOT_HELD;

  HeapState& state_;
  bool is_pending_ CACHALOT_GUARDED_BY(device_lock) = false;
  MemoryLimit limit_ CACHALOT_GUARDED_BY(device_lock);
  Setter limit_setter_ CACHALOT_GUARDED_BY(device_lock) = Setter::option;
  Setter fraction_setter_ CACHALOT_GUARDED_BY(device_lock) = Setter::option;
  SoftLimitCallback callback_ CACHALOT_GUARDED_BY(device_lock);
};

inline constexpr int kAnyPriority = std::numeric_limits<int>::max();

// MemoryPressure asks the program to free memory when a request runs short, and reports an out-of-memory error to it.
//
// Callbacks and observers run without the lock and may call the allocator.
class MemoryPressure {
 public:
  explicit MemoryPressure(HeapState& state) : state_(state) {}
  MemoryPressure(const MemoryPressure&) = delete;
  MemoryPressure& operator=(const MemoryPressure&) = delete;

  // These take the lock themselves. They throw InvalidArgument for an empty function.
  void add_out_of_memory_observer(OutOfMemoryObserver observer);
  void add_refusal_observer(RefusalObserver observer);
  void add_free_memory_callback(FreeMemoryCallback callback);
  // Adds a function that is called when a request is about to fail, and that returns whether it freed something. The
  // guard's function empties the quarantine. Throws InvalidArgument for an empty one.
  void add_last_resort(FreeMemoryCallback last_resort);

  // An Evictor makes one evictable tag of the device give way, but that of the pool, of a priority of at most `priority`. Returns
  // the bytes; 0 if no tag can.
  using Evictor = std::function<std::size_t(const PrivatePool* pool, int priority)>;
  // Takes the lock itself.
  void set_evictor(Evictor evictor);

  // Returns the bytes that one evictable tag gave up, as an Evictor. Throws CudaError.
  std::size_t evict(const PrivatePool* pool, int priority, Held& held) CACHALOT_HELD;
  // Both return whether something was freed.
  bool run_callbacks(Held& held) CACHALOT_HELD;
  bool run_last_resorts(Held& held) CACHALOT_HELD;
  void tell(const OutOfMemoryReport& report, Held& held) CACHALOT_HELD;
  void tell_of_refusal(const RefusalReport& report, Held& held) CACHALOT_HELD;

 private:
  static bool run(const Vector<FreeMemoryCallback>& functions, Held& held) CACHALOT_HELD;

  HeapState& state_;
  std::vector<OutOfMemoryObserver> observers_ CACHALOT_GUARDED_BY(device_lock);
  std::vector<RefusalObserver> refusal_observers_ CACHALOT_GUARDED_BY(device_lock);
  Vector<FreeMemoryCallback> callbacks_ CACHALOT_GUARDED_BY(device_lock);
  Vector<FreeMemoryCallback> last_resorts_ CACHALOT_GUARDED_BY(device_lock);
  Evictor evictor_ CACHALOT_GUARDED_BY(device_lock);
};

CACHALOT_END
