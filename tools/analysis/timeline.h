// Memory over time: what a program held at each event of its history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// Returns the bytes of each allocation's block: of those that live at the end as the file has it, of the others by PyTorch's
// rounding, without a remainder that was too small to be split off.
std::vector<std::uint64_t> block_bytes_of(const DeviceHistory& device, std::span<const Allocation> allocations);

// Bytes of one moment.
struct Held {
  std::uint64_t requested = 0;
  std::uint64_t allocated = 0;  // in blocks
  std::uint64_t active = 0;     // and those that other streams still use
  std::uint64_t reserved = 0;   // 0 throughout where the file has no segments
};

// Goes through a history and knows the held memory. The memory held before follows from that held at the end.
class HeldCursor {
 public:
  // All must outlive it. `blocks` is of block_bytes_of.
  HeldCursor(const DeviceHistory& device, std::span<const Allocation> allocations,
             std::span<const std::uint64_t> blocks);

  bool is_at_end() const { return event_ == device_.events.size(); }
  // Returns the number of events that have happened.
  std::size_t event() const { return event_; }
  const Held& held() const { return held_; }
  // Returns the allocations that began or ended with the last event.
  std::span<const std::uint32_t> begun() const { return begun_; }
  std::span<const std::uint32_t> ended() const { return ended_; }
  // Lets the next event happen.
  void advance();

 private:
  void begin(std::uint32_t allocation);
  void end(std::uint32_t allocation);

  const DeviceHistory& device_;
  std::span<const Allocation> allocations_;
  std::span<const std::uint64_t> blocks_;
  std::vector<std::uint32_t> by_end_;  // the allocations that end, by event
  std::size_t next_begin_ = 0;         // in allocations_
  std::size_t next_end_ = 0;           // in by_end_
  std::size_t event_ = 0;
  Held held_;
  std::int64_t pending_ = 0;
  std::vector<std::uint32_t> begun_;
  std::vector<std::uint32_t> ended_;
};

// Moments of a history that a reader asks for, and what lived then.
enum class PeakKind : std::uint8_t { allocated_peak, reserved_peak, out_of_memory, end };

struct Peak {
  PeakKind kind = PeakKind::end;
  std::size_t event = 0;  // the number of events that had happened; 0: before the first
  std::int64_t time_us = 0;
  Held held;
  std::vector<std::uint32_t> live;  // the allocations, in their order
};

// Returns the first moment when the bytes were at their peak; for out_of_memory the last moment when memory ran out, or nullopt
// where it never did.
std::optional<Peak> find_peak(const DeviceHistory& device, std::span<const Allocation> allocations,
                              std::span<const std::uint64_t> blocks, PeakKind kind);

// Returns the moment after `events` events, at most as many as there are.
Peak peak_after(const DeviceHistory& device, std::span<const Allocation> allocations,
                std::span<const std::uint64_t> blocks, std::size_t events);

// Returns the number of the last event of `oom`; nullopt without one.
std::optional<std::size_t> last_oom(const DeviceHistory& device);

// Returns the moment of a history that a user names: "peak" (of requested bytes), "reserved" (the peak of reserved bytes), "oom"
// (the last failed allocation), "end", or a number of events: "1200". Throws InvalidArgument for another one, and where memory
// never ran out.
Peak asked_peak(const std::string& path, const DeviceHistory& device, std::span<const Allocation> allocations,
                const std::string& at);

using StageId = std::uint32_t;  // 0: outside of all stages

// Stages of a program by its annotations: which were open when an event happened.
// Stages are nested: "step 3 > forward". The constructor takes a time in proportion to events and marks.
class Stages {
 public:
  Stages(const History& history, const DeviceHistory& device);

  // Returns the stage of an event, by its number.
  StageId at(std::size_t event) const { return by_event_.empty() ? 0 : by_event_[event]; }
  // Returns "step 3 > forward", or "".
  const std::string& name(StageId stage) const { return names_[stage]; }
  // Returns the annotations that are open, the outermost first.
  const std::vector<TextId>& open(StageId stage) const { return open_[stage]; }
  std::size_t size() const { return names_.size(); }

 private:
  std::vector<std::string> names_{""};
  std::vector<std::vector<TextId>> open_{{}};
  std::vector<StageId> by_event_;  // empty: there are no stages
};

}  // namespace cachalot::tools
