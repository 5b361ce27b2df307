// The stretches of device memory that an allocator held, each from the event that took it to the event that gave it back.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "tools/history/history.h"

namespace cachalot::tools {

struct MemoryRange {
  static constexpr std::uint32_t kBefore = std::numeric_limits<std::uint32_t>::max();  // as `begin`
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();   // as `end`

  Address address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t begin = kBefore;
  std::uint32_t end = kNever;
  std::uint16_t stream = 0;  // this and what follows are a recorded segment's, as in HistorySegment
  std::uint16_t pool = 0;
  bool is_small = false;
  bool is_expandable = false;
};

// Follows memory that comes and goes in stretches of any length: a stretch that is given back may be a part of a taken
// one, or span several. Going backwards in time works as well; then the begin of a range closes it.
class MemoryRanges {
 public:
  enum class Direction : std::uint8_t { forwards, backwards };

  explicit MemoryRanges(Direction direction = Direction::forwards) : direction_(direction) {}

  // Something that overlaps it is closed first: a damaged file's segments may.
  void open(const MemoryRange& range, std::uint32_t event);
  void close(Address address, std::uint64_t bytes, std::uint32_t event);
  // Returns all ranges, by the event of their begin; those from before come first, by address.
  std::vector<MemoryRange> take();

 private:
  void put(MemoryRange range, Address begin, Address end);
  void finish(MemoryRange range, Address begin, Address end, std::uint32_t event);

  Direction direction_;
  std::map<Address, MemoryRange> open_;  // disjoint
  std::vector<MemoryRange> closed_;
};

// Returns the segments of the history, those of before its first event as well: rebuilt backwards from the segments at the
// end.
std::vector<MemoryRange> recorded_ranges(const DeviceHistory& device);

}  // namespace cachalot::tools
