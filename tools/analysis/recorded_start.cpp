#include "tools/analysis/recorded_start.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy/torch_policy.h"
#include "tools/analysis/layout.h"
#include "tools/analysis/policy_settings.h"
#include "tools/analysis/timeline.h"
#include "tools/history/recorded_figures.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

// Makes the events. Each segment is free as a whole for a moment and is then filled from its begin, block after block: all
// segments that were made before are full, so that the rest of this one is the only free block.
class StartMaker {
 public:
  StartMaker(std::span<const Allocation> allocations, const Options& options)
      : allocations_(allocations), options_(options) {}

  // Returns false for a segment that PyTorch does not make or fill this way.
  bool add(const SegmentAt& segment) {
    const std::uint64_t first = segment.is_small ? kSmallSize : segment.bytes;
    const bool is_usual = !segment.is_expandable && segment_size(first, options_.large_segment_size) == segment.bytes;
    if (!is_usual || segment.is_small != (pool_kind(first) == PoolKind::small)) return false;
    allocate(segment, segment.address, first);
    free(segment, segment.address, first);
    Address at = segment.address;
    for (const LiveBlock& block : segment.live) {
      const Address address = allocations_[block.allocation].address;
      if (!add_free(segment, at, address) || !is_of_pool(segment, block.bytes)) return false;
      allocate(segment, address, block.bytes);
      at = address + block.bytes;
    }
    return add_free(segment, at, segment.address + segment.bytes);
  }

  // Frees what is to be free.
  std::vector<HistoryEvent> take() {
    for (const HistoryEvent& block : free_) {
      add(block, Action::free_requested);
      add(block, Action::free_completed);
    }
    return std::move(events_);
  }

 private:
  static bool is_of_pool(const SegmentAt& segment, std::uint64_t bytes) {
    return segment.is_small == (pool_kind(bytes) == PoolKind::small);
  }

  // A free block of the small pool may be larger than its largest request: pieces, which merge when they are freed.
  bool add_free(const SegmentAt& segment, Address begin, Address end) {
    const std::uint64_t most = segment.is_small ? kSmallSize : segment.bytes;
    while (begin < end) {
      const std::uint64_t bytes = std::min(most, end - begin);
      if (!is_of_pool(segment, bytes)) return false;
      allocate(segment, begin, bytes);
      free_.push_back(events_.back());
      begin += bytes;
    }
    return true;
  }

  void allocate(const SegmentAt& segment, Address address, std::uint64_t bytes) {
    add({.address = address, .bytes = bytes, .stream = segment.stream, .pool = segment.pool}, Action::alloc);
  }
  void free(const SegmentAt& segment, Address address, std::uint64_t bytes) {
    for (const Action action : {Action::free_requested, Action::free_completed})
      add({.address = address, .bytes = bytes, .stream = segment.stream, .pool = segment.pool}, action);
  }
  void add(HistoryEvent event, Action action) {
    event.action = action;
    events_.push_back(event);
  }

  std::span<const Allocation> allocations_;
  const Options& options_;
  std::vector<HistoryEvent> events_;
  std::vector<HistoryEvent> free_;
};

}  // namespace

std::optional<RecordedStart> recorded_start(const History& history, const DeviceHistory& device,
                                            std::span<const Allocation> allocations) {
  const Options options = segment_options(history.settings);
  const std::vector<std::uint64_t> blocks = block_bytes_of(device, allocations);
  const auto is_rounding = [](std::size_t divisions) { return divisions > 1; };
  if (options.max_split_size != Options::kUnlimited) return std::nullopt;
  if (std::ranges::any_of(options.roundup_power2_divisions, is_rounding)) return std::nullopt;
  const auto first = std::ranges::find_if(device.events, [](const HistoryEvent& event) {
    return event.action != Action::segment_free && event.action != Action::snapshot;
  });
  RecordedStart made;
  made.trace.left_out = static_cast<std::size_t>(first - device.events.begin());
  const Peak start = peak_after(device, allocations, blocks, made.trace.left_out);
  const std::vector<SegmentAt> segments = layout_at(device, allocations, blocks, start, options);
  std::size_t placed = 0;
  std::int64_t reserved = 0;
  StartMaker maker(allocations, options);
  for (const SegmentAt& segment : segments) {
    if (!maker.add(segment)) return std::nullopt;
    placed += segment.live.size();
    reserved += static_cast<std::int64_t>(segment.bytes);
  }
  if (segments.empty() || placed != start.live.size()) return std::nullopt;
  std::int64_t peak = reserved;
  for (auto event = first; event != device.events.end(); ++event)
    peak = std::max(peak, reserved += reserved_change(*event));
  made.peak_reserved_bytes = static_cast<std::uint64_t>(peak);
  made.trace.events = maker.take();
  return made;
}

}  // namespace cachalot::tools
