#include "tools/pages/layout.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cachalot/change.h"
#include "tools/analysis/timeline.h"
#include "tools/replay.h"

namespace cachalot::tools {
namespace {

// The device has more memory than any real one, and than what is asked for.
ReplayOptions with_config(const std::string& config, const Trace& trace) {
  constexpr std::size_t kMost = std::size_t{1} << 50;
  ReplayOptions options;
  options.config = config;
  options.device_bytes = std::max(options.device_bytes, 4 * std::min(peak_live_bytes(trace), kMost / 4));
  return options;
}

// Follows an allocator that plays the allocations of a history.
class LayoutRecorder {
 public:
  LayoutRecorder(const Trace& trace, std::span<const Allocation> allocations, const std::string& config)
      : trace_(trace), allocations_(allocations), by_slot_(trace.slots), world_(trace, with_config(config, trace)) {
    layout_.addresses.resize(allocations.size());
    layout_.block_bytes.resize(allocations.size());
  }

  Layout record() {
    world_.allocator().add_change_tracker([this](const Change& change) { follow(change); });
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      play(trace_.events[i], i);
      look_at(world_.allocator().memory_reserved());
    }
    layout_.ranges = ranges_.take();
    is_recording_ = false;  // the end of the world is no part of the history
    return std::move(layout_);
  }

 private:
  // The trace has the allocations in their order.
  void play(const TraceEvent& event, std::size_t number) {
    if (event.empties_cache()) {  // with the event before
      world_.play_with_work(event, number);
      return;
    }
    if (event.is_free()) {
      event_ = allocations_[by_slot_[event.slot]].end;
      world_.play_with_work(event, number);
      return;
    }
    allocation_ = next_++;
    by_slot_[event.slot] = allocation_;
    event_ = allocations_[allocation_].begin;
    world_.play_with_work(event, number);
  }

  void look_at(std::uint64_t held) {
    if (!layout_.held.empty() && layout_.held.back().bytes == held) return;
    if (layout_.held.empty() || layout_.held.back().event != event_) layout_.held.push_back({.event = event_});
    layout_.held.back().bytes = held;
  }

  void follow(const Change& change) {
    if (!is_recording_) return;
    if (change.action == Change::Action::alloc) {
      layout_.addresses[allocation_] = change.address;
      layout_.block_bytes[allocation_] = change.block_bytes;
    }
    if (change.action == Change::Action::segment_alloc || change.action == Change::Action::segment_map) {
      ranges_.open({.address = change.address, .bytes = change.bytes, .begin = event_}, event_);
    }
    if (change.action == Change::Action::segment_free || change.action == Change::Action::segment_unmap) {
      ranges_.close(change.address, change.bytes, event_);
    }
  }

  const Trace& trace_;
  std::span<const Allocation> allocations_;
  std::vector<std::size_t> by_slot_;  // the allocation that a slot holds
  std::size_t next_ = 0;              // allocation
  std::size_t allocation_ = 0;        // being made
  std::uint32_t event_ = Allocation::kBefore;
  bool is_recording_ = true;
  MemoryRanges ranges_;
  Layout layout_;
  ReplayWorld world_;
};

}  // namespace

Layout recorded_layout(const DeviceHistory& device, std::span<const Allocation> allocations) {
  Layout layout;
  layout.name = "recorded";
  for (const Allocation& allocation : allocations) layout.addresses.push_back(allocation.address);
  layout.block_bytes = block_bytes_of(device, allocations);
  layout.ranges = recorded_ranges(device);
  return layout;
}

Layout replayed_layout(const Trace& trace, std::span<const Allocation> allocations, const std::string& name,
                       const std::string& config) {
  Layout layout = LayoutRecorder(trace, allocations, config).record();
  layout.name = name;
  return layout;
}

}  // namespace cachalot::tools
