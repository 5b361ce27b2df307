// A program's memory over time: the allocations of a history, its segments, and the memory that was held at any moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cachalot/options.h"
#include "tools/history/history.h"
#include "tools/history/memory_ranges.h"

namespace cachalot::tools {

// An allocation, from its request to its free.
struct Allocation {
  static constexpr std::uint32_t kBefore = MemoryRange::kBefore;  // as `begin`
  static constexpr std::uint32_t kNever = MemoryRange::kNever;    // as `end`

  Address address = 0;
  std::uint64_t bytes = 0;        // requested
  std::uint32_t begin = kBefore;  // the event that made it
  std::uint32_t end = kNever;     // the event that freed it: free_requested, else free_completed
  StackId stack = 0;
  DetailsId details = 0;  // of the newest annotation, which has what was known before
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
};

// Bytes of one moment.
struct Held {
  std::uint64_t requested = 0;
  std::uint64_t allocated = 0;  // in blocks
  std::uint64_t active = 0;     // and those that other streams still use
  std::uint64_t reserved = 0;   // 0 throughout where the file has no segments
};

class Timeline;

// A HeldCursor goes through a timeline and knows the held memory. The memory held before the first event follows from that held
// at the end.
class HeldCursor {
 public:
  // The timeline must outlive it.
  explicit HeldCursor(const Timeline& timeline);

  bool is_at_end() const;
  // Returns the number of events that have happened.
  std::size_t event() const { return event_; }
  const Held& held() const { return held_; }
  // Lets the next event happen.
  void advance();

 private:
  void begin(std::uint32_t allocation);
  void end(std::uint32_t allocation);

  const Timeline& timeline_;
  const std::vector<std::uint64_t>& blocks_;
  std::size_t event_ = 0;
  Held held_;
  std::int64_t pending_ = 0;
};

// Moments that a reader asks for.
enum class MomentKind : std::uint8_t { allocated_peak, reserved_peak, out_of_memory, end };

// A moment, and the allocations that lived then.
struct Moment {
  MomentKind kind = MomentKind::end;
  std::size_t event = 0;  // the number of events that had happened; 0: before the first
  std::int64_t time_us = 0;
  Held held;
  std::vector<std::uint32_t> live;  // the allocations, in their order
};

// A live block of a segment.
struct LiveBlock {
  std::uint32_t allocation = 0;
  std::uint64_t bytes = 0;  // with a rest that was too small to be split off
};

// A segment at a moment, with the live blocks in it.
struct SegmentAt {
  Address address = 0;
  std::uint64_t bytes = 0;
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
  bool is_small = false;
  bool is_expandable = false;
  std::vector<LiveBlock> live{};  // by address
  std::uint64_t live_bytes = 0;   // of the blocks
  std::uint64_t free_bytes = 0;
  std::uint64_t largest_free_bytes = 0;
  std::size_t free_pieces = 0;
};

// A Timeline pairs each request of a device's history with its free, once, and answers questions about any moment. Its time
// and memory are in proportion to the events, whatever their addresses. Not thread-safe: some answers are computed when
// they are first needed.
class Timeline {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();  // as an allocation

  // Both must outlive it. Throws InvalidArgument where there are 2^32 events or more.
  Timeline(const History& history, const DeviceHistory& device);

  // Returns how many this process has made: a command makes one for each device of a file.
  static std::size_t made();

  const History& history() const { return *history_; }
  const DeviceHistory& device() const { return *device_; }
  const std::vector<HistoryEvent>& events() const { return device_->events; }
  // Returns the settings of the program as options, which tell how requests are rounded and blocks split.
  const Options& options() const { return options_; }
  // Return the figures of the device beyond PyTorch's memory, and those that its process told, or null if there are none.
  const DeviceFacts* facts() const { return find_facts(*history_, device_->device); }
  const DeviceFacts::Failing* told() const;

  // Returns the allocations in the order of their begins: first those from before, by address. Memory that the history frees
  // without having allocated it, and memory that lives at the end and is not in the history, was there before; an
  // allocation at the address of a live one ends that one.
  const std::vector<Allocation>& allocations() const { return allocations_; }
  // Returns the number of those from before.
  std::size_t earlier() const { return earlier_; }
  std::uint64_t earlier_bytes() const;
  // Return the allocation that an event made, or freed; kNone: none. An event that does both frees first.
  std::uint32_t begun_by(std::size_t event) const { return begun_[event]; }
  std::uint32_t ended_by(std::size_t event) const { return ended_[event]; }

  // Returns the bytes of each allocation's block: of those that live at the end as the file has it, of the others by PyTorch's
  // rounding, with a remainder that was too small to be split off.
  const std::vector<std::uint64_t>& block_bytes() const;
  // Returns the segments, as recorded_ranges does.
  const std::vector<MemoryRange>& segments() const;

  // Returns the number of the last event of `oom`; nullopt without one.
  std::optional<std::size_t> last_oom() const;
  // Returns the moment after `events` events, at most as many as there are.
  Moment moment_after(std::size_t events) const;
  // Returns the first moment when the bytes were at their peak; for out_of_memory the last moment when memory ran out, or
  // nullopt where it never did.
  std::optional<Moment> moment(MomentKind kind) const;
  // Returns the moment that a user names: "peak" (of allocated bytes), "reserved" (the peak of reserved bytes), "oom" (the
  // last failed allocation; the end, where another device alone ran out), "end", or a number of events: "1200". Throws
  // InvalidArgument for another one, and where memory never ran out.
  Moment asked_moment(const std::string& at) const;
  // Returns the largest bytes of each kind, at whatever moments they were.
  const Held& most_held() const;

  // Returns the segments at the moment, by address. Empty where the file has no segments.
  std::vector<SegmentAt> segments_at(const Moment& moment) const;
  // Returns the segments at the end as the file has them: with the bytes of each block, and without memory that waits for other
  // streams, which is neither live nor free.
  std::vector<SegmentAt> segments_as_written(const Moment& moment) const;
  // Takes memory that is asleep, which a history has as live, out of a moment.
  void leave_out_asleep(Moment& moment) const;

 private:
  // The numbers of events until the first moments when the bytes were at their peaks.
  struct Peaks {
    std::size_t allocated_event = 0;
    std::size_t reserved_event = 0;
    Held most;
  };

  const Peaks& peaks() const;
  std::vector<SegmentAt> empty_segments_after(std::size_t events) const;

  const History* history_;
  const DeviceHistory* device_;
  Options options_;
  std::vector<Allocation> allocations_;
  std::size_t earlier_ = 0;
  std::vector<std::uint32_t> begun_;  // by event
  std::vector<std::uint32_t> ended_;
  mutable std::optional<std::vector<std::uint64_t>> block_bytes_;
  mutable std::optional<std::vector<MemoryRange>> segments_;
  mutable std::optional<Peaks> peaks_;
};

// The memory in a file: its history, and a timeline for each device and for pinned host memory.
class Timelines {
 public:
  explicit Timelines(History history);

  const History& history() const { return *history_; }
  std::span<const Timeline> devices() const { return std::span(timelines_).first(history_->devices.size()); }
  std::span<const Timeline> host() const { return std::span(timelines_).subspan(history_->devices.size()); }

 private:
  std::unique_ptr<const History> history_;
  std::vector<Timeline> timelines_;  // of the devices, then of the host
};

using StageId = std::uint32_t;  // 0: outside of all stages

// Stages of a program by its annotations: those that were open when an event happened.
// Stages are nested: "step 3 > forward". The constructor takes a time in proportion to events and marks.
//
// The simulator annotates modules, "cachalot:module layers.0", and passes, "cachalot:backward", itself, beside the
// user's stages.
class Stages {
 public:
  enum class Of : std::uint8_t { everything, user, modules };  // modules: by the innermost, "layers.0"

  Stages(const History& history, const DeviceHistory& device, Of of = Of::everything);

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
