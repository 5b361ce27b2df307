// Reads allocation traces: text, plain or gzip, one event a line, every line ended by a newline.
//
//   a,<id>,<requested bytes>,<stream>    allocates
//   f,<id>                               frees, on the allocation's stream
//
// An id is any number of 64 bits and is used for one allocation only. Allocations that are live at the end stay live.
// The reader is strict: the first line that breaks a rule is an error that names file, line, value and rule.
//
// Memory is bounded by the allocations that live at once, not by the length of the file. A trace of more than
// kMostHeldEvents stays in its file, which is read again for each pass over it. Ids that were used are remembered as
// ranges, up to a million of them: in a trace whose ids leave more gaps than that, a freed id may come again unnoticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cachalot/device.h"
#include "tools/base/input_file.h"
#include "tools/base/seeded_hash.h"

namespace cachalot::tools {

// One line of a trace, ready to be replayed: ids have become slots, small numbers that are used again once their
// allocation is freed, so that a replay holds its pointers in an array no larger than the most that are alive at once.
struct TraceEvent {
  static constexpr std::uint32_t kFree = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t kCache = std::numeric_limits<std::uint32_t>::max();  // slot of a free: empties_cache

  std::uint64_t bytes = 0;   // requested; 0 for a free
  std::uint32_t slot = 0;    // < Trace::slots, or kCache
  std::uint32_t stream = 0;  // index in Trace::streams, or kFree

  bool is_free() const { return stream == kFree; }
  // The program gives all cached memory back to the device, as by torch.cuda.empty_cache(). Histories alone tell this.
  bool empties_cache() const { return slot == kCache; }
  bool operator==(const TraceEvent&) const = default;
};

// A segment that the recorded program took from the device for an event of a trace.
struct RecordedSegment {
  std::size_t event = 0;          // index
  AddressRange range;             // empty: none was taken
  bool is_after_release = false;  // PyTorch gave its cached memory back for it, since the device had no more
};

struct Trace {
  static constexpr std::size_t kMostHeldEvents = std::size_t{1} << 22;  // 64 MiB
  static constexpr std::size_t kMostSlots = std::size_t{1} << 24;
  // Programs have tens: PyTorch hands out 32 of each priority. Each costs the device and the hazard checker some memory
  // for each of the others.
  static constexpr std::size_t kMostStreams = 4096;

  std::string path;
  std::size_t event_count = 0;
  std::size_t allocation_count = 0;
  std::vector<TraceEvent> events;  // event i is line i + 1; none of a trace that stays in its file
  std::vector<Stream> streams;     // distinct; the trace's stream 0 is nullptr
  // The memory pool of each stream of a history, 0 for the default one. A pair of stream and pool is a stream of the trace.
  std::vector<std::uint16_t> pools;
  std::size_t slots = 0;
  std::vector<RecordedSegment> segments;  // of a history
  // The trace of a history that begins later than its program, with the memory that PyTorch had then: for its default policy.
  std::shared_ptr<const Trace> as_recorded;
  std::size_t failed_requests = 0;  // of a history: they are played, and freed at once

  bool is_held() const { return events.size() == event_count; }
};

// A TraceMaker makes a trace of allocations and frees for any reader: it gives slots to live allocations, and indexes
// to streams.
class TraceMaker {
 public:
  // The caller sees to it that there is room: can_allocate, can_use.
  TraceEvent allocate(std::uint64_t bytes, std::uint64_t stream_number);
  TraceEvent free(std::uint32_t slot);

  bool can_allocate() const { return !free_slots_.empty() || slots_ < Trace::kMostSlots; }
  bool can_use(std::uint64_t stream_number) const;
  std::size_t slots() const { return slots_; }
  // Handles that look like a driver's: aligned, so that none is one of CUDA's special values (1 and 2).
  std::vector<Stream> streams() const;
  const std::vector<std::uint64_t>& stream_numbers() const { return stream_numbers_; }

 private:
  std::uint32_t stream_index(std::uint64_t number);

  std::size_t slots_ = 0;
  std::vector<std::uint32_t> free_slots_;  // the last one freed is the next one used
  std::vector<std::uint64_t> stream_numbers_;
  std::unordered_map<std::uint64_t, std::uint32_t, SeededHash> stream_indexes_;
  std::uint32_t last_stream_ = 0;
};

// Throws InvalidArgument. All errors in the file are found here, also in the part that is not held.
Trace read_trace(InputFile file, std::size_t most_held_events = Trace::kMostHeldEvents);
Trace read_trace(const std::string& path);

// Hands the events over in order, in parts, until `take` returns false: of a trace that is held in one part, else from its
// file, which throws InvalidArgument when it is not any more what it was. `first` is the number of the part's first event.
using TakeEvents = std::function<bool(std::span<const TraceEvent> events, std::size_t first)>;
void for_each_part(const Trace& trace, const TakeEvents& take);

// The most bytes alive at once if every allocation succeeds: no device that completes the trace can be smaller.
std::size_t peak_live_bytes(const Trace& trace);

// Returns "moe" for "data/traces/moe.csv.gz".
std::string trace_name(const std::string& path);

}  // namespace cachalot::tools
