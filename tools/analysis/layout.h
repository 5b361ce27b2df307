// The layout of memory at a moment of a history: segments, the live blocks in them, and the free memory between those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "cachalot/events.h"
#include "cachalot/options.h"
#include "tools/analysis/timeline.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// The stretches of device memory that an allocator held, each from the event that took it to the event that gave it back.
struct MemoryRange {
  Address address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t begin = Allocation::kBefore;
  std::uint32_t end = Allocation::kNever;
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

struct LiveBlock {
  std::uint32_t allocation = 0;
  std::uint64_t bytes = 0;  // with a rest that was too small to be split off
};

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

// Returns the segments after `peak.event` events, by address. `options` are those that PyTorch had: they tell which remainders of
// blocks are split off. Empty where the file has no segments.
std::vector<SegmentAt> layout_at(const DeviceHistory& device, std::span<const Allocation> allocations,
                                 std::span<const std::uint64_t> blocks, const Peak& peak, const Options& options);

}  // namespace cachalot::tools
