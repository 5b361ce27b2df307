// Memory over time: what a program held at each event of its history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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
  std::uint64_t reserved = 0;   // 0 throughout where the file tells of no segments
};

// Goes through a history and knows what is held. What the device held before is known from what it holds at the end.
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

}  // namespace cachalot::tools
