// The HandleExchange replaces idle handles of several pages by handles of one page each, while the program does other
// things. Large handles make growth cheap in driver calls; handles of one page lose less memory, because each idle page
// can then be mapped where it is needed. An exchange needs no more memory than there is: the old handle goes first.
//
// The steps are made by a thread of its own, if the device and the option background_thread allow it, or by tidy.
// A program that is steady (it made no driver call for a second) has no use for it, and is left alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/host_memory.h"
#include "growth/background_thread.h"
#include "growth/page_driver.h"
#include "heap/stream_clocks.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

class HandleExchange {
 public:
  HandleExchange(HeapState& state, PageHeap& pages, PageDriver& driver, StreamClocks& clocks)
      : state_(state), pages_(pages), driver_(driver), clocks_(clocks), thread_([this] {
          return step_in_background();
        }) {}
  HandleExchange(const HandleExchange&) = delete;
  HandleExchange& operator=(const HandleExchange&) = delete;

  // A Step says what a call of step found to do.
  enum class Step : std::uint8_t {
    exchanged,  // one handle; there may be more
    waits,      // idle handles are still in use by work of the device
    nothing,    // no handle is idle now, or a stream captures
    steady,     // the program is steady
  };
  // The pauses of the thread leave the growth mutex to requests that wait for it, and the device time for its work.
  static constexpr std::chrono::microseconds kPauseAfterExchange{100};
  static constexpr std::chrono::microseconds kPauseWhileWorkIsPending{2'000};
  static constexpr std::chrono::microseconds kPauseWhileNothingIsIdle{10'000};

  // Exchanges one handle whose last work is done. Does nothing during a capture. Handles of private pools stay. Locks by
  // itself.
  Step tidy();
  // The program made driver calls for a request: it is not steady.
  void heap_changed(const Held& held) CACHALOT_HELD;
  // Waits for the thread's step under way; no other begins.
  void stop() { thread_.stop(); }

 private:
  Step step(Growing& growing) CACHALOT_GROWING;
  std::optional<std::chrono::microseconds> step_in_background();
  bool is_steady(const Held& held) const CACHALOT_HELD;
  void find_candidates(const Held& held) CACHALOT_HELD;
  bool is_replaceable(HandleId id, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  PageHeap& pages_ CACHALOT_GUARDED_BY(device_lock);
  PageDriver& driver_;
  StreamClocks& clocks_;
  Vector<HandleId> candidates_ CACHALOT_GUARDED_BY(device_lock);  // the next is the last
  std::int64_t changed_us_ CACHALOT_GUARDED_BY(device_lock) = 0;  // on the device's clock
  bool has_changed_ CACHALOT_GUARDED_BY(device_lock) = false;     // the device last refused memory
  BackgroundThread thread_;
};

CACHALOT_END
