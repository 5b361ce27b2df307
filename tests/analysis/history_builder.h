// Histories for tests, made by a call for each event.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/history/history.h"

namespace cachalot::tools {

class HistoryBuilder {
 public:
  HistoryBuilder() { history_.devices.emplace_back(); }

  struct Call {
    std::string_view file;
    std::string_view function;
    std::uint32_t line = 1;
  };
  // The newest call first.
  StackId stack(const std::vector<Call>& calls) {
    std::vector<FrameId> frames;
    for (const Call& call : calls) {
      frames.push_back(history_.stacks.add_frame(
          {.file = history_.texts.add(call.file), .function = history_.texts.add(call.function), .line = call.line}));
    }
    return history_.stacks.add(frames);
  }

  void add(HistoryEvent::Action action, Address address, std::uint64_t bytes, StackId stack = 0,
           DetailsId details = 0) {
    device().events.push_back({.address = address,
                               .bytes = bytes,
                               .time_us = static_cast<std::int64_t>(device().events.size()),
                               .stack = stack,
                               .details = details,
                               .action = action});
  }
  void alloc(Address address, std::uint64_t bytes, StackId stack = 0, DetailsId details = 0) {
    add(HistoryEvent::Action::alloc, address, bytes, stack, details);
  }
  void free(Address address, std::uint64_t bytes) {
    add(HistoryEvent::Action::free_requested, address, bytes);
    add(HistoryEvent::Action::free_completed, address, bytes);
  }
  void stage(std::string_view name, bool begins) {
    history_.stages.push_back({.time_us = static_cast<std::int64_t>(device().events.size()),
                               .name = history_.texts.add(name),
                               .begins = begins});
  }
  // A segment of the end, with its blocks one behind the other.
  void segment(Address address, const std::vector<HistoryBlock>& blocks) {
    HistorySegment segment;
    segment.address = address;
    segment.first_block = device().blocks.size();
    segment.block_count = blocks.size();
    for (HistoryBlock block : blocks) {
      block.address = address + segment.bytes;
      segment.bytes += block.bytes;
      device().blocks.push_back(block);
    }
    device().segments.push_back(segment);
  }

  DeviceHistory& device() { return history_.devices.front(); }
  History& history() { return history_; }

 private:
  History history_;
};

}  // namespace cachalot::tools
