// A history as JSON of our own: "cachalot history", version 1 (docs/tools/convert.md has its keys).
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/exports/exports.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

constexpr int kVersion = 1;

const char* json_name_of(HistoryBlock::State state) {
  switch (state) {
    case HistoryBlock::State::allocated:
      return "allocated";
    case HistoryBlock::State::pending_free:
      return "pending_free";
    case HistoryBlock::State::free:
      break;
  }
  return "free";
}

std::string json_of(const DeviceFacts& facts) {
  const auto figure = [](const std::optional<std::uint64_t>& bytes) {
    return bytes ? nlohmann::ordered_json(*bytes) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json processes = nlohmann::ordered_json::array();
  for (const DeviceFacts::Process& process : facts.other_processes) {
    processes.push_back({{"process", process.id}, {"bytes", process.bytes}, {"name", process.name}});
  }
  return text_of(nlohmann::ordered_json{{"device", facts.device},
                                        {"name", facts.name},
                                        {"total_bytes", figure(facts.total_bytes)},
                                        {"free_bytes", figure(facts.free_bytes)},
                                        {"limit_bytes", figure(facts.limit_bytes)},
                                        {"nccl_bytes", figure(facts.nccl_bytes)},
                                        {"context_bytes", figure(facts.context_bytes)},
                                        {"process_bytes", figure(facts.process_bytes)},
                                        {"other_processes", std::move(processes)}});
}

class HistoryJsonWriter {
 public:
  HistoryJsonWriter(const History& history, OutputFile& out) : history_(history), out_(out) {}

  void write(const std::vector<const DeviceHistory*>& devices) {
    out_.print("{{\"format\":\"cachalot history\",\"version\":{},\"path\":{},\"settings\":{},\n", kVersion,
               json_string(history_.path), json_string(history_.settings));
    write_tables();
    write_list("devices", devices, [&](const DeviceHistory* device) { write_device(*device); });
    write_list("host", history_.host, [&](const DeviceHistory& device) { write_device(device); });
    write_list("stages", history_.stages, [&](const StageMark& mark) {
      out_.print("{{\"time_us\":{},\"name\":{},\"device\":{},\"begins\":{}}}", mark.time_us, text(mark.name),
                 mark.device, mark.begins);
    });
    write_list("facts", history_.facts, [&](const DeviceFacts& facts) { out_.write(json_of(facts)); });
    out_.print("\"unknown_actions\":{}}}\n", history_.unknown_actions);
  }

 private:
  std::string text(TextId id) const { return json_string(history_.texts[id]); }

  // One item a line.
  template <typename Items, typename Write>
  void write_items(std::string_view key, const Items& items, Write write_item) {
    out_.print("\"{}\":[", key);
    std::string_view separator = "\n";
    for (const auto& item : items) {
      out_.write(separator);
      write_item(item);
      separator = ",\n";
    }
    out_.write("]");
  }
  template <typename Items, typename Write>
  void write_list(std::string_view key, const Items& items, Write write_item) {
    write_items(key, items, write_item);
    out_.write(",\n");
  }
  template <typename Write>
  void write_table(std::string_view key, std::size_t size, Write write_item) {
    out_.print("\"{}\":[", key);
    for (std::size_t i = 0; i < size; ++i) {
      out_.write(i == 0 ? "\n" : ",\n");
      write_item(i);
    }
    out_.write("],\n");
  }

  void write_tables() {
    write_table("streams", history_.streams.size(), [&](std::size_t i) { out_.print("{}", history_.streams[i]); });
    write_table("pools", history_.pools.size(),
                [&](std::size_t i) { out_.print("[{},{}]", history_.pools[i].first, history_.pools[i].second); });
    write_table("frames", history_.stacks.frame_count(), [&](std::size_t i) {
      const StackFrame& frame = history_.stacks.frame(static_cast<FrameId>(i));
      out_.print("{{\"file\":{},\"line\":{},\"function\":{},\"node\":{}}}", text(frame.file), frame.line,
                 text(frame.function), text(frame.node));
    });
    write_table("stacks", history_.stacks.size(),
                [&](std::size_t i) { out_.print("[{}]", fmt::join(history_.stacks[static_cast<StackId>(i)], ",")); });
    write_table("details", history_.details.size(), [&](std::size_t i) {
      const EventDetails& details = history_.details[i];
      out_.print("{{\"forward_stack\":{},\"compile_context\":{},\"user_metadata\":{},\"internal_metadata\":{}}}",
                 details.forward_stack, text(details.compile_context), text(details.user_metadata),
                 text(details.internal_metadata));
    });
  }

  void write_device(const DeviceHistory& device) {
    out_.print("{{\"device\":{},\n", device.device);
    write_list("events", device.events, [&](const HistoryEvent& event) { write_event(event); });
    write_items("segments", device.segments, [&](const HistorySegment& segment) { write_segment(device, segment); });
    out_.write("}");
  }

  void write_event(const HistoryEvent& event) {
    const bool is_oom = event.action == HistoryEvent::Action::oom;
    out_.print(
        "{{\"action\":\"{}\",\"{}\":{},\"bytes\":{},\"time_us\":{},\"stack\":{},\"stream\":{},\"pool\":{},\"details\":{"
        "}}}",
        name_of(event.action), is_oom ? "device_free_bytes" : "address", event.address, event.bytes, event.time_us,
        event.stack, event.stream, event.pool, event.details);
  }

  void write_segment(const DeviceHistory& device, const HistorySegment& segment) {
    out_.print(
        "{{\"address\":{},\"bytes\":{},\"stack\":{},\"stream\":{},\"pool\":{},\"is_small\":{},\"is_expandable\":{},",
        segment.address, segment.bytes, segment.stack, segment.stream, segment.pool, segment.is_small,
        segment.is_expandable);
    const std::span blocks = std::span(device.blocks).subspan(segment.first_block, segment.block_count);
    write_items("blocks", blocks, [&](const HistoryBlock& block) {
      out_.print("{{\"address\":{},\"bytes\":{},\"requested_bytes\":{},\"state\":\"{}\",\"stack\":{},\"details\":{}}}",
                 block.address, block.bytes, block.requested_bytes, json_name_of(block.state), block.stack,
                 block.details);
    });
    out_.write("}");
  }

  const History& history_;
  OutputFile& out_;
};

}  // namespace

void write_history_json(const History& history, const ExportOptions& options, OutputFile& out) {
  HistoryJsonWriter(history, out).write(devices_of(history, options));
}

}  // namespace cachalot::tools
