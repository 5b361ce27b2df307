// What torch 2.14 asks of a host allocator beyond 2.13: history, and segments and traces for snapshots.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "adapter/external_pins.h"
#include "adapter/pinned.h"

namespace cachalot::torch_adapter {

class PinnedAllocatorSince2_14 final : public PinnedAllocator {
 public:
  using PinnedAllocator::PinnedAllocator;

  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder, std::size_t max_entries,
                      c10::CachingDeviceAllocator::RecordContext when, bool clear) override {
    max_entries = std::max<std::size_t>(max_entries, 1);
    HistoryOptions history;
    history.enabled = enabled;
    history.max_entries = max_entries;
    history.contexts = to_contexts(when);
    if (recorder != nullptr) history.recorder = [recorder] { return Context(recorder()); };
    history.clear = clear;
    as_torch([&] { plug_.record_history(history, device_that_pins()); });
    external_.record(enabled, recorder, max_entries, when, clear);
  }
  bool is_history_enabled() const override { return plug_.history_enabled(); }

  // torch's form has an address, a size and a state, so each block is an entry: together they tile the segments.
  std::vector<at::HostSegmentInfo> get_segments() override {
    const Snapshot taken = as_torch([&] { return plug_.snapshot(); });
    std::vector<at::HostSegmentInfo> result;
    for (const SegmentSnapshot& segment : taken.segments) {
      for (const BlockSnapshot& block : segment.blocks) result.push_back(to_torch_host(segment, block));
    }
    external_.add_segments(result);
    return result;
  }

  std::vector<TraceEntry> get_traces() override {
    const Snapshot taken = as_torch([&] { return plug_.snapshot(); });
    std::vector<TraceEntry> result;
    for (const std::vector<Change>& trace : taken.device_traces) result = to_torch(trace);
    for (TraceEntry& entry : result) entry.device_ = kHost;
    external_.add_traces(result);
    return result;
  }

  void record_external_register(void* memory, std::size_t bytes) override { external_.add(memory, bytes); }
  void record_external_unregister(void* memory) override { external_.remove(memory); }

 private:
  static at::HostSegmentInfo to_torch_host(const SegmentSnapshot& segment, const BlockSnapshot& block) {
    at::HostSegmentInfo info;
    info.address = block.address;
    info.size = block.size;
    info.allocated = block.state == BlockSnapshot::State::active_allocated;
    info.active = block.state != BlockSnapshot::State::inactive;
    info.owner_private_pool_id = to_torch(segment.segment_pool_id);
    info.context_when_allocated = to_torch(block.context);
    return info;
  }

  ExternalPins external_;
};

}  // namespace cachalot::torch_adapter
