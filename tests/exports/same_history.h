// Compares two histories, regardless of the numbers of their tables.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/history/history.h"

namespace cachalot::tools {

// A history's parts as texts, in which numbers of tables are resolved.
class PlainHistory {
 public:
  explicit PlainHistory(const History& history) : history_(history) {}

  std::vector<std::string> lines() {
    line("settings {}", history_.settings);
    for (const DeviceHistory& device : history_.devices) add("device", device);
    for (const DeviceHistory& device : history_.host) add("host", device);
    for (const StageMark& mark : history_.stages) {
      line("stage {} {} {} {}", mark.time_us, text(mark.name), mark.device, mark.begins);
    }
    for (const DeviceFacts& facts : history_.facts) add(facts);
    return std::move(lines_);
  }
  // Returns the lines of one device, which `what` names: "device" or "host".
  std::vector<std::string> lines_of(const char* what, const DeviceHistory& device) {
    add(what, device);
    return std::exchange(lines_, {});
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  std::string_view text(TextId id) const { return history_.texts[id]; }
  std::string stack(StackId id) const {
    std::string text = "[";
    for (const FrameId frame : history_.stacks[id]) {
      const StackFrame& one = history_.stacks.frame(frame);
      text += fmt::format("{}|{}|{}|{};", history_.texts[one.file], one.line, history_.texts[one.function],
                          history_.texts[one.node]);
    }
    return text + "]";
  }
  std::string details(DetailsId id) const {
    const EventDetails& one = history_.details[id];
    return fmt::format("{} {} {} {}", stack(one.forward_stack), text(one.compile_context), text(one.user_metadata),
                       text(one.internal_metadata));
  }
  std::string pool(std::uint16_t id) const {
    return fmt::format("({}, {})", history_.pools[id].first, history_.pools[id].second);
  }

  void add(const char* what, const DeviceHistory& device) {
    line("{} {}", what, device.device);
    for (const HistoryEvent& event : device.events) {
      line("{} {} {} {} {} {} {} {}", name_of(event.action), event.address, event.bytes, event.time_us,
           stack(event.stack), history_.streams[event.stream], pool(event.pool), details(event.details));
    }
    for (const HistorySegment& segment : device.asleep)
      line("asleep {} {} {}", segment.address, segment.bytes, pool(segment.pool));
    for (const HistorySegment& segment : device.segments) {
      line("segment {} {} {} {} {} {} {}", segment.address, segment.bytes, stack(segment.stack),
           history_.streams[segment.stream], pool(segment.pool), segment.is_small, segment.is_expandable);
      for (std::size_t i = segment.first_block; i < segment.first_block + segment.block_count; ++i) {
        const HistoryBlock& block = device.blocks[i];
        line("block {} {} {} {} {} {}", block.address, block.bytes, block.requested_bytes, stack(block.stack),
             static_cast<int>(block.state), details(block.details));
        if (block.owner != 0) line("owner {} {}", text(block.owner), text(block.owner_kind));
      }
    }
  }

  void add(const DeviceFacts& facts) {
    const auto figure = [](const std::optional<std::uint64_t>& bytes) {
      return bytes ? fmt::to_string(*bytes) : "unknown";
    };
    line("facts {} {} {} {} {} {} {} {}", facts.device, facts.name, figure(facts.total_bytes), figure(facts.free_bytes),
         figure(facts.limit_bytes), figure(facts.nccl_bytes), figure(facts.context_bytes), figure(facts.process_bytes));
    for (const DeviceFacts::Process& process : facts.other_processes) {
      line("process {} {} {}", process.id, process.bytes, process.name);
    }
    if (!facts.failing) return;
    const DeviceFacts::Failing& failing = *facts.failing;
    line("failing {} {} {} {} {} {}", failing.who, failing.segment_bytes, failing.has_pages, failing.is_refused,
         failing.has_nccl, failing.knows_owners);
    for (const DeviceFacts::Tag& tag : failing.tags) line("tag ({}, {}) {}", tag.pool.first, tag.pool.second, tag.name);
    for (const DeviceFacts::Library& library : failing.libraries) line("library {} {}", library.name, library.bytes);
  }

  const History& history_;
  std::vector<std::string> lines_;
};

inline void expect_same(const History& one, const History& other) {
  EXPECT_EQ(PlainHistory(one).lines(), PlainHistory(other).lines());
}

}  // namespace cachalot::tools
