#include "tools/history/history.h"

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "tools/snapshot_reader.h"

namespace cachalot::tools {
namespace {

// Makes a history of a snapshot that was read whole.
class SnapshotHistory {
 public:
  explicit SnapshotHistory(const TorchSnapshot& snapshot) : snapshot_(snapshot) { history_.path = snapshot.path; }

  History make() {
    history_.settings = snapshot_.memory.options.text;
    history_.unknown_actions = snapshot_.unknown_actions;
    std::map<int, DeviceHistory> devices;
    for (const SegmentSnapshot& segment : snapshot_.memory.segments) add_segment(segment, devices[segment.device]);
    for (std::size_t device = 0; device < snapshot_.memory.device_traces.size(); ++device) {
      const std::vector<Change>& changes = snapshot_.memory.device_traces[device];
      if (changes.empty()) continue;
      for (const Change& change : changes) devices[static_cast<int>(device)].events.push_back(event_of(change));
    }
    for (auto& [number, device] : devices) {
      device.device = number;
      history_.devices.push_back(std::move(device));
    }
    return std::move(history_);
  }

 private:
  std::uint16_t stream_of(Stream stream) { return history_.streams.add(reinterpret_cast<std::uintptr_t>(stream)); }

  StackId stack_of(const Context& context) {
    const Site* const site = site_of(context);
    if (site == nullptr) return 0;
    const auto [known, is_new] = stacks_.try_emplace(site, 0);
    if (!is_new) return known->second;
    std::vector<FrameId> frames;
    for (const Frame& frame : site->frames) {
      frames.push_back(history_.stacks.add_frame({.file = history_.texts.add(frame.file),
                                                  .function = history_.texts.add(frame.function),
                                                  .line = static_cast<std::uint32_t>(frame.line)}));
    }
    return known->second = history_.stacks.add(frames);
  }

  HistoryEvent event_of(const Change& change) {
    return {.address = change.address,
            .bytes = change.bytes,
            .time_us = change.time_us,
            .stack = stack_of(change.context),
            .stream = stream_of(change.stream),
            .pool = history_.pools.add(change.pool),
            .action = action_of(change.action)};
  }

  static HistoryEvent::Action action_of(Change::Action action) {
    if (action == Change::Action::annotate) return HistoryEvent::Action::annotate;
    return static_cast<HistoryEvent::Action>(action);  // the first nine have the same order
  }

  void add_segment(const SegmentSnapshot& segment, DeviceHistory& device) {
    device.segments.push_back({.address = segment.address,
                               .bytes = segment.total_size,
                               .first_block = device.blocks.size(),
                               .block_count = segment.blocks.size(),
                               .stack = stack_of(segment.context),
                               .stream = stream_of(segment.stream),
                               .pool = history_.pools.add(segment.segment_pool_id),
                               .is_small = segment.segment_type == PoolKind::small,
                               .is_expandable = segment.is_expandable});
    for (const BlockSnapshot& block : segment.blocks) {
      device.blocks.push_back({.address = block.address,
                               .bytes = block.size,
                               .requested_bytes = block.requested_size,
                               .stack = stack_of(block.context),
                               .state = state_of(block.state)});
    }
  }

  static HistoryBlock::State state_of(BlockSnapshot::State state) {
    switch (state) {
      case BlockSnapshot::State::active_allocated:
        return HistoryBlock::State::allocated;
      case BlockSnapshot::State::active_pending_free:
        return HistoryBlock::State::pending_free;
      case BlockSnapshot::State::inactive:
        break;
    }
    return HistoryBlock::State::free;
  }

  const TorchSnapshot& snapshot_;
  History history_;
  std::map<const Site*, StackId> stacks_;
};

}  // namespace

const char* name_of(HistoryEvent::Action action) {
  static constexpr std::array kNames = {"alloc",        "free_requested", "free_completed", "segment_alloc",
                                        "segment_free", "segment_map",    "segment_unmap",  "snapshot",
                                        "oom",          "annotate"};
  return kNames[static_cast<std::size_t>(action)];
}

History read_history(InputFile file) {
  const TorchSnapshot snapshot = read_snapshot(std::move(file));
  return SnapshotHistory(snapshot).make();
}

History read_history(const std::string& path) { return read_history(InputFile(path, "history")); }

}  // namespace cachalot::tools
