// Replays a trace through CachingAllocator over a simulated device, and measures what the allocator did.
//
// Measuring and timing are separate: the figures come from one replay that looks after every event, the time from
// another, on a fresh allocator and device, whose loop does nothing but allocate and free.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {

struct ReplayOptions {
  std::string config;  // the allocator's options, options.h
  std::size_t device_bytes = std::size_t{200000} * kMiB;
  std::optional<double> memory_fraction;  // as by set_memory_fraction; else as `config` has it
  int repeat = 1;                         // passes of the timed replay
  std::string steps_path;                 // not empty: write the state after each event there
  bool find_min_device = false;
  std::function<void(double done)> progress;  // called now and then with the part done of the whole, 0 to 1
};

// A kind of device call, under the name it has in reports, and how often it was made.
struct CallCount {
  std::string_view name;
  std::uint64_t count = 0;
};

struct ReplayResult {
  std::string trace;  // its path
  std::size_t events = 0;

  // Bytes; the largest of each, at whatever events they were reached.
  std::size_t peak_requested_bytes = 0;
  std::size_t peak_allocated_bytes = 0;
  std::size_t peak_reserved_bytes = 0;
  double ratio = 0;  // peak reserved / peak requested; 0 when nothing was requested
  // At the event that first brought reserved bytes to their peak (stats.h has the formulas).
  double internal_fragmentation = 0;
  double external_fragmentation = 0;

  std::size_t ooms = 0;                        // allocations that failed
  std::optional<std::size_t> first_oom_event;  // 0-based
  std::uint64_t retries = 0;                   // the device was asked again after the cache was given back
  std::array<CallCount, 11> device_calls;
  double driver_us = 0;     // simulated latencies of all device calls, without waiting
  double ns_per_event = 0;  // host time of the best pass's loop / events

  // With find_min_device: the smallest device found that completes the trace; nullopt when even 1 PiB does not.
  std::optional<std::size_t> min_device_bytes;
};

// A fresh allocator on a fresh device, set up as the options say, and the slots of one trace.
class ReplayWorld {
 public:
  // Throws InvalidArgument for options the allocator refuses and for a device smaller than a segment.
  ReplayWorld(const Trace& trace, const ReplayOptions& options);
  ReplayWorld(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes);

  // Plays one event. False: it is an allocation, and it failed; its free will then do nothing.
  bool play(const TraceEvent& event) {
    void*& pointer = pointers_[event.slot];
    if (event.is_free()) {
      allocator_.deallocate(std::exchange(pointer, nullptr));
      return true;
    }
    try {
      pointer = allocator_.allocate(event.bytes, /*device=*/0, streams_[event.stream]);
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  }

  void free_all();

  CachingAllocator& allocator() { return allocator_; }
  const SimulatedDevice& device() const { return *device_; }
  void* pointer(std::uint32_t slot) const { return pointers_[slot]; }

 private:
  std::vector<Stream> streams_;
  std::shared_ptr<SimulatedDevice> device_;
  CachingAllocator allocator_;
  std::vector<void*> pointers_;  // by slot
};

// Everything at once. Throws InvalidArgument (options; steps_path cannot be written) and CudaError.
ReplayResult replay(const Trace& trace, const ReplayOptions& options);

// Nanoseconds the loop of the fastest of `passes` replays took, all on one allocator: after each, what still lives is
// freed and the cache is kept. Starts a thread first, so that the C library works as it does in real programs.
std::int64_t time_best_pass(const Trace& trace, const ReplayOptions& options, int passes,
                            const std::function<void(int passes_done)>& after_pass = {});

// Whether every allocation of the trace succeeds on a device of this size.
bool completes(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes);

// Bisects for the smallest device that completes the trace, between one too small for what lives at once and one that
// is enough, until the two are 0.1 % (or 2 MiB) apart; returns the upper one. Completion is not quite monotone in the
// size of the device, so a smaller one may exist. nullopt when even 1 PiB is too small.
std::optional<std::size_t> find_min_device(const Trace& trace, const ReplayOptions& options,
                                           const std::function<void()>& after_try = {});

}  // namespace cachalot::tools
