// Replays a trace through CachingAllocator over a simulated device, and measures what the allocator did.
//
// A trace that stays in its file is read again for each pass over it; reading is not in the times.
//
// Measuring and timing are separate: the figures come from one replay that looks after every event, the time from
// another, on a fresh allocator and device, whose loop does nothing but allocate and free.
//
// All but the timed replay run on a device that lags as a real one does: each block gets work on its stream as soon as
// it is allocated, so memory freed a moment ago is still in use. The host waits only where the queue of a stream is
// full, and learns nothing by it.
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
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

struct ReplayOptions {
  std::string config;  // the allocator's options, options.h
  std::size_t device_bytes = std::size_t{200000} * kMiB;
  std::optional<double> memory_fraction;  // as by set_memory_fraction; else as `config` has it
  double work_us = 10;                    // simulated work on each block, microseconds; 0: the device is never behind
  double work_gb_per_s = 0;    // the work takes as long again as filling the block at this rate; 0: no longer
  int wait_every = 0;          // after this number of uses of blocks the host waits for the stream's work; 0: never
  bool check_hazards = false;  // as SimulatedDevice::Config::check_hazards
  int iterations = 1;          // the number of times that the measuring replay plays the trace (end_iteration)
  int repeat = 1;              // passes of the timed replay
  std::string steps_path;      // not empty: write the state after each event of the first iteration there
  bool find_min_device = false;
  double access_us_per_mapping = 0;  // as LatencyModel::set_access_us_per_mapping
  bool mapping_waits = false;        // as SimulatedDevice::Config::mapping_waits
  bool uses_host = true;  // if false, heap:managed has the device's memory alone, as the search of find_min_device
  bool models_expandable_segments = false;    // for ReplayResult::expandable_us: costs another pass
  bool measure_fragmentation = true;          // costs another replay up to the peak
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
  double work_us = 0;               // as asked for, and so is check_hazards
  bool check_hazards = false;       // and none was found
  std::size_t failed_requests = 0;  // Trace::failed_requests

  // All figures but the times are over all iterations, unless they say otherwise.
  // Bytes; the largest of each, at whatever events they were reached.
  std::size_t peak_requested_bytes = 0;
  std::size_t peak_allocated_bytes = 0;
  std::size_t peak_reserved_bytes = 0;
  std::size_t peak_driver_bytes = 0;  // physical memory in use on the device, whole 2 MiB units
  double ratio = 0;                   // peak reserved / peak requested; 0 when nothing was requested
  // At the event that first brought reserved bytes to their peak (stats.h has the formulas).
  double internal_fragmentation = 0;
  double external_fragmentation = 0;

  std::size_t ooms = 0;                        // allocations that failed
  std::optional<std::size_t> first_oom_event;  // 0-based, of the first iteration that had one
  std::uint64_t retries = 0;                   // the device was asked again after the cache was given back
  std::array<CallCount, 12> device_calls;
  std::uint64_t device_wide_synchronizations = 0;  // waits for all work of the device; cudaFree's own are not counted
  std::uint64_t stream_waits = 0;                  // of one stream for another, on the device
  double driver_us = 0;                            // simulated latencies of all device calls, without waiting
  double expandable_us = 0;  // of the calls that make memory with PyTorch's expandable segments; if asked for
  double ns_per_event = 0;   // host time of the best pass's loop / events

  // Memory calls: those that take, give back, map or unmap memory of the device.
  std::uint64_t memory_calls = 0;
  std::vector<std::uint64_t> memory_calls_per_iteration;
  std::vector<double> driver_us_per_iteration;
  std::vector<double> ratio_per_iteration;  // of the peaks until the end of each
  // In the first iteration, of the later half of the trace's allocations (the larger half, if they differ): how many
  // there are, failed ones as well, and how many made a memory call.
  std::size_t late_allocations = 0;
  std::size_t late_driver_allocations = 0;
  std::size_t live_mappings = 0;  // after the last event

  // With find_min_device: the smallest device found that completes the trace; nullopt when even 1 PiB does not.
  std::optional<std::size_t> min_device_bytes;
};

// A LaunchQueue has the work queued on one stream, in order. The driver's queue has room for `kMostPending` launches;
// the next one makes the host wait for the oldest.
class LaunchQueue {
 public:
  static constexpr std::size_t kMostPending = 1024;

  // The time from which there is room for one more launch.
  std::int64_t has_room_ns() const { return ends_ns_.size() < kMostPending ? 0 : ends_ns_[oldest_]; }
  void add(std::int64_t end_ns);

 private:
  std::vector<std::int64_t> ends_ns_;  // a ring, once it is as long as it may be
  std::size_t oldest_ = 0;
};

// A fresh allocator on a fresh device, set up as the options say, and the slots of one trace, which must outlive it.
class ReplayWorld {
 public:
  // Throws InvalidArgument for options the allocator refuses, for a device smaller than a segment, and for a time of
  // work that is negative, longer than a second or none at all (NaN).
  ReplayWorld(const Trace& trace, const ReplayOptions& options);
  ReplayWorld(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes);
  // The program ends: it holds nothing any more and its work is done, so that the allocator may give everything back.
  ~ReplayWorld();
  ReplayWorld(const ReplayWorld&) = delete;
  ReplayWorld& operator=(const ReplayWorld&) = delete;

  // Plays one event, the allocator's part alone: no time passes and the block gets no work. Hazards are not checked,
  // and the options must not ask for it. Returns false if it is an allocation, and it failed; its free will then do
  // nothing.
  bool play(const TraceEvent& event) {
    if (event.empties_cache()) [[unlikely]] {
      allocator_.empty_cache();
      return true;
    }
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

  // Plays an event of the trace, by its number, as a program does on a device that lags: the event costs the host a
  // microsecond, and the block gets its work. Throws HazardError, which names the trace and the event.
  bool play_with_work(std::size_t event) { return play_with_work(trace_.events[event], event); }
  bool play_with_work(const TraceEvent& event, std::size_t number);

  // Ends an iteration of the trace. Blocks that still live are kept, as a program keeps its weights: play_with_work
  // leaves out the allocations of these blocks from then on.
  void end_iteration();

  // Frees what still lives of this iteration. Throws HazardError.
  void free_all();

  CachingAllocator& allocator() { return allocator_; }
  SimulatedDevice& device() { return *device_; }
  void* pointer(std::uint32_t slot) const { return pointers_[slot]; }

 private:
  static constexpr std::size_t kNoEvent = static_cast<std::size_t>(-1);

  bool is_kept(const TraceEvent& event, std::size_t number) const {
    return !event.is_free() && kept_events_[event.slot] == number;
  }
  void follow_recording(const TraceEvent& event, std::size_t number);
  void redirect_pools();
  void give_back(std::uint32_t slot);
  void use(const TraceEvent& event);

  const Trace& trace_;
  std::vector<Stream> streams_;
  std::shared_ptr<SimulatedDevice> device_;
  CachingAllocator allocator_;
  std::vector<void*> pointers_;            // by slot
  std::vector<std::size_t> allocated_by_;  // by slot: the last event that used it
  std::vector<std::size_t> kept_events_;   // by slot: the event of the block that an earlier iteration left alive
  std::vector<void*> kept_;                // those blocks

  const std::int64_t work_ns_;
  const double work_ns_per_byte_;
  const int wait_every_;
  int uses_ = 0;  // since the host last waited
  const bool check_hazards_;
  std::optional<Options> recorded_policy_;  // of a heap that follows the recording
  std::size_t next_recorded_ = 0;           // index in the trace's segments
  std::vector<LaunchQueue> queues_;         // by stream
  int iteration_ = 1;
};

// Everything at once. Throws InvalidArgument (options; steps_path cannot be written), CudaError and HazardError.
ReplayResult replay(const Trace& trace, const ReplayOptions& options);

// Nanoseconds the loop of the fastest of `passes` replays took, all on one allocator: after each, what still lives is
// freed and the cache is kept. No simulated work and no checks, whatever the options say. Starts a thread first, so
// that the C library works as it does in real programs.
std::int64_t time_best_pass(const Trace& trace, const ReplayOptions& options, int passes,
                            const std::function<void(int passes_done)>& after_pass = {});

// Returns whether every allocation of the trace, played once, succeeds on a device of this size.
bool completes(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes);

// Bisects for the smallest device that completes the trace, between one too small for the memory that lives at once and
// one that is large enough, until the two are 0.1 % (or 2 MiB) apart; returns the upper one. Completion is not quite
// monotone in the size of the device, so a smaller one may exist. nullopt when even 1 PiB is too small.
std::optional<std::size_t> find_min_device(const Trace& trace, const ReplayOptions& options,
                                           const std::function<void()>& after_try = {});

}  // namespace cachalot::tools
