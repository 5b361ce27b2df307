#include "tools/output/export_formats.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/analysis/timeline.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools {

// A history as JSON of our own: "cachalot history", version 1 (docs/tools/convert.md has its keys).
namespace {

constexpr int kVersion = 1;

nlohmann::ordered_json json_of(const DeviceFacts::Failing& failing) {
  nlohmann::ordered_json tags = nlohmann::ordered_json::array();
  for (const DeviceFacts::Tag& tag : failing.tags)
    tags.push_back({{"pool", {tag.pool.first, tag.pool.second}}, {"name", tag.name}});
  nlohmann::ordered_json libraries = nlohmann::ordered_json::array();
  for (const DeviceFacts::Library& library : failing.libraries)
    libraries.push_back({{"name", library.name}, {"bytes", library.bytes}});
  return {{"who", failing.who},
          {"segment_bytes", failing.segment_bytes},
          {"has_pages", failing.has_pages},
          {"is_refused", failing.is_refused},
          {"has_nccl", failing.has_nccl},
          {"knows_owners", failing.knows_owners},
          {"tags", std::move(tags)},
          {"libraries", std::move(libraries)}};
}

std::string json_of(const DeviceFacts& facts) {
  nlohmann::ordered_json processes = nlohmann::ordered_json::array();
  for (const DeviceFacts::Process& process : facts.other_processes) {
    processes.push_back({{"process", process.id}, {"bytes", process.bytes}, {"name", process.name}});
  }
  return text_of(nlohmann::ordered_json{{"device", facts.device},
                                        {"name", facts.name},
                                        {"total_bytes", or_null(facts.total_bytes)},
                                        {"free_bytes", or_null(facts.free_bytes)},
                                        {"limit_bytes", or_null(facts.limit_bytes)},
                                        {"nccl_bytes", or_null(facts.nccl_bytes)},
                                        {"context_bytes", or_null(facts.context_bytes)},
                                        {"process_bytes", or_null(facts.process_bytes)},
                                        {"other_processes", std::move(processes)},
                                        {"failing", facts.failing ? json_of(*facts.failing) : nullptr}});
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
  void write_list(std::string_view key, const Items& items, Write write_item, std::string_view end = "],\n") {
    out_.print("\"{}\":[", key);
    std::string_view separator = "\n";
    for (const auto& item : items) {
      out_.write(separator);
      write_item(item);
      separator = ",\n";
    }
    out_.write(end);
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
    std::vector<std::pair<const HistorySegment*, bool>> segments;  // and whether they are asleep
    for (const HistorySegment& segment : device.segments) segments.emplace_back(&segment, false);
    for (const HistorySegment& segment : device.asleep) segments.emplace_back(&segment, true);
    const auto write = [&](const auto& entry) { write_segment(device, *entry.first, entry.second); };
    write_list("segments", segments, write, "]}");
  }

  void write_event(const HistoryEvent& event) {
    const bool is_oom = event.action == HistoryEvent::Action::oom;
    out_.print(
        "{{\"action\":\"{}\",\"{}\":{},\"bytes\":{},\"time_us\":{},\"stack\":{},\"stream\":{},\"pool\":{},\"details\":{"
        "}}}",
        name_of(event.action), is_oom ? "device_free_bytes" : "address", event.address, event.bytes, event.time_us,
        event.stack, event.stream, event.pool, event.details);
  }

  void write_segment(const DeviceHistory& device, const HistorySegment& segment, bool is_asleep) {
    out_.print(
        "{{\"address\":{},\"bytes\":{},\"stack\":{},\"stream\":{},\"pool\":{},\"is_small\":{},\"is_expandable\":{},",
        segment.address, segment.bytes, segment.stack, segment.stream, segment.pool, segment.is_small,
        segment.is_expandable);
    if (is_asleep) out_.write("\"is_asleep\":true,");
    const auto write = [&](const HistoryBlock& block) {
      out_.print("{{\"address\":{},\"bytes\":{},\"requested_bytes\":{},\"state\":\"{}\",\"stack\":{},\"details\":{}",
                 block.address, block.bytes, block.requested_bytes, kBlockStates[static_cast<std::size_t>(block.state)],
                 block.stack, block.details);
      if (block.owner != 0) out_.print(",\"owner\":{}", text(block.owner));
      if (block.owner_kind != 0) out_.print(",\"owner_kind\":{}", text(block.owner_kind));
      out_.write("}");
    };
    write_list("blocks", device.blocks_of(segment), write, "]}");
  }

  const History& history_;
  OutputFile& out_;
};

void write_history_json(const History& history, const ExportOptions& options, OutputFile& out) {
  HistoryJsonWriter(history, out).write(devices_of(history, options));
}

}  // namespace

std::string json_string(std::string_view text) { return text_of(nlohmann::ordered_json(text)); }

std::string utf8_of(std::string_view text) {
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return std::string(text);
  return nlohmann::json::parse(json_string(text)).get<std::string>();
}

std::string place_text(Sites& sites, StackId stack) {
  return stack == 0 ? "(no call stack was recorded)" : utf8_of(sites.text_of(sites.place_of(stack)));
}

std::vector<const DeviceHistory*> devices_of(const History& history, const ExportOptions& options) {
  std::vector<const DeviceHistory*> devices;
  for (const DeviceHistory& device : history.devices) {
    if (!options.device || device.device == *options.device) devices.push_back(&device);
  }
  CACHALOT_REQUIRE(!devices.empty() || !options.device, "{}: the history has no device {}", history.path,
                   *options.device);
  return devices;
}

const DeviceHistory& only_device_of(const History& history, const ExportOptions& options, std::string_view format) {
  const std::vector<const DeviceHistory*> devices = devices_of(history, options);
  CACHALOT_REQUIRE(!devices.empty(), "{}: the history has no device", history.path);
  CACHALOT_REQUIRE(devices.size() == 1, "{}: the history has {} devices, and {} has one: name it with --device",
                   history.path, devices.size(), format);
  return *devices.front();
}

std::vector<std::size_t> largest_of(const std::vector<Allocation>& allocations, std::size_t most) {
  std::vector<std::size_t> kept(allocations.size());
  std::iota(kept.begin(), kept.end(), std::size_t{0});
  if (kept.size() <= most) return kept;
  const auto is_larger = [&](std::size_t a, std::size_t b) {
    return std::pair(allocations[a].bytes, b) > std::pair(allocations[b].bytes, a);
  };
  std::ranges::nth_element(kept, kept.begin() + static_cast<std::ptrdiff_t>(most), is_larger);
  kept.resize(most);
  std::ranges::sort(kept);
  return kept;
}

namespace {

// The begin or the end of an allocation.
struct Step {
  std::size_t event = 0;  // 0 of the memory from before the first event, too
  bool is_free = false;
  std::size_t allocation = 0;  // index
};

// Calls visit(step), and fail(event) for a request that failed, in the order of the events. A free comes before the request at
// its address of the same event.
template <typename Visit, typename Fail>
void for_each_step(const Timeline& timeline, Visit visit, Fail fail) {
  for (std::size_t i = 0; i < timeline.earlier(); ++i) visit(Step{.event = 0, .is_free = false, .allocation = i});
  for (std::size_t event = 0; event < timeline.events().size(); ++event) {
    if (timeline.ended_by(event) != Timeline::kNone) visit(Step{event, true, timeline.ended_by(event)});
    if (timeline.begun_by(event) != Timeline::kNone) visit(Step{event, false, timeline.begun_by(event)});
    if (timeline.events()[event].action == HistoryEvent::Action::oom) fail(event);
  }
}

// Writes a history as a cachalot trace (trace_reader.h).

void write_trace_text(const History& history, const ExportOptions& options, OutputFile& out) {
  const DeviceHistory& device = only_device_of(history, options, "a trace");
  const Timeline timeline(history, device);
  CACHALOT_REQUIRE(!timeline.allocations().empty(), "{}: the history has no allocation", history.path);
  // A pool's memory serves that pool alone, as in trace_of: each pair of pool and stream is a stream of the trace. The default
  // stream with the default pool is stream 0.
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::size_t> streams{{{0, 0}, 0}};
  const auto stream_of = [&](std::uint16_t pool, std::uint16_t stream) {
    return streams.try_emplace({pool, stream}, streams.size()).first->second;
  };
  std::size_t last_id = timeline.allocations().size();
  const auto write = [&](const Step& step) {
    const Allocation& allocation = timeline.allocations()[step.allocation];
    if (step.is_free) {
      out.print("f,{}\n", step.allocation + 1);
    } else {
      out.print("a,{},{},{}\n", step.allocation + 1, allocation.bytes, stream_of(allocation.pool, allocation.stream));
    }
  };
  // A replay of the history does the same: it is played, and freed at once.
  const auto write_failure = [&](std::size_t event) {
    const HistoryEvent& failed = timeline.events()[event];
    ++last_id;
    out.print("a,{0},{1},{2}\nf,{0}\n", last_id, failed.bytes, stream_of(failed.pool, failed.stream));
  };
  for_each_step(timeline, write, write_failure);
}

// A history as the log of RMM's logging_resource_adaptor, which RMM's replay benchmark plays. It has no pools.
constexpr int kThread = 1;  // a history does not say which thread it was

void write_rmm_csv(const History& history, const ExportOptions& options, OutputFile& out) {
  const DeviceHistory& device = only_device_of(history, options, "RMM's log");
  const Timeline timeline(history, device);
  // The log has the time of day; that of a history without times counts from midnight.
  const auto write_line = [&](std::size_t event, std::string_view action, std::string_view pointer, std::uint64_t bytes,
                              std::uint16_t stream) {
    constexpr std::int64_t kDay = std::int64_t{24} * 3600 * 1'000'000;
    const std::int64_t time_us = event < device.events.size() ? device.events[event].time_us : 0;
    const std::int64_t of_day = (time_us % kDay + kDay) % kDay;
    const std::uint64_t handle = history.streams[stream];
    out.print("{},{:%T}.{:06},{},{},{},{}\n", kThread, std::chrono::seconds(of_day / 1'000'000), of_day % 1'000'000,
              action, pointer, bytes, handle == 0 ? "0" : fmt::format("0x{:x}", handle));
  };
  const auto write_step = [&](const Step& step) {
    const Allocation& allocation = timeline.allocations()[step.allocation];
    write_line(step.event, step.is_free ? "free" : "allocate", fmt::format("0x{:x}", allocation.address),
               allocation.bytes, allocation.stream);
  };
  const auto write_failure = [&](std::size_t event) {
    const HistoryEvent& failure = device.events[event];
    write_line(event, "allocate failure", "(nil)", failure.bytes, failure.stream);
  };
  out.write("Thread,Time,Action,Pointer,Size,Stream\n");
  for_each_step(timeline, write_step, write_failure);
}

// A file's name has the first ending that fits; any may be followed by .gz.
constexpr std::array kFormats = {
    ExportFormat{"torch", {".pickle", ".pkl"}, write_torch_snapshot},
    ExportFormat{"perfetto", {".perfetto.json", ".trace.json"}, write_perfetto},
    ExportFormat{"json", {".json", ""}, write_history_json},
    ExportFormat{"rmm", {".rmm.csv", ".rmm"}, write_rmm_csv},
    ExportFormat{"trace", {".trace.csv", ".trace"}, write_trace_text},
};

std::vector<std::string_view> names_of_formats() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kFormats));
  for (const ExportFormat& format : kFormats) names.push_back(format.name);
  return names;
}

}  // namespace

std::string export_format_names() { return fmt::to_string(fmt::join(names_of_formats(), ", ")); }

const ExportFormat& export_format(std::string_view name) {
  const auto* const found = std::ranges::find(kFormats, name, &ExportFormat::name);
  if (found != kFormats.end()) return *found;
  throw InvalidArgument(fmt::format("--to {}: there is no such format{}; the formats are {}", name,
                                    question_about(name, names_of_formats()), export_format_names()));
}

const ExportFormat& export_format_of_file(std::string_view path) {
  std::string_view name = path;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  for (const ExportFormat& format : kFormats) {
    for (const std::string_view ending : format.endings) {
      if (!ending.empty() && name.ends_with(ending)) return format;
    }
  }
  throw InvalidArgument(
      fmt::format("-o {}: no format has files that end so; name one with --to: {}", path, export_format_names()));
}

}  // namespace cachalot::tools
