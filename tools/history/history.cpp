#include "tools/history/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "tools/history/readers.h"

namespace cachalot::tools {

const char* name_of(HistoryEvent::Action action) {
  static constexpr std::array kNames = {"alloc",        "free_requested", "free_completed", "segment_alloc",
                                        "segment_free", "segment_map",    "segment_unmap",  "snapshot",
                                        "oom",          "annotate"};
  return kNames[static_cast<std::size_t>(action)];
}

std::string unknown_actions_text(std::size_t count) {
  return format_count(count, "event") + " of an unknown kind, from a newer PyTorch";
}

History read_history(InputFile file) {
  const std::optional<HistoryFormat> text = text_format(file.begin());
  if (!text) return read_snapshot_history(std::move(file));
  return *text == HistoryFormat::rmm_csv ? read_rmm_history(std::move(file)) : read_trace_history(std::move(file));
}

History read_history(const std::string& path) { return read_history(InputFile(path, "history")); }

bool has_pools(const DeviceHistory& device) {
  return std::ranges::any_of(device.events, [](const HistoryEvent& event) { return event.pool != 0; });
}

void complete_pools(DeviceHistory& device) {
  const auto has_pool = [](const HistoryEvent& event) {
    return event.pool != 0 && event.action != HistoryEvent::Action::oom;
  };
  if (std::ranges::any_of(device.events, has_pool)) return;
  std::map<Address, const HistorySegment*> segments;  // with a pool, that were there at the event and are at the end
  for (const auto* const all : {&device.segments, &device.asleep}) {
    for (const HistorySegment& segment : *all) {
      if (segment.pool != 0) segments.emplace(segment.address, &segment);
    }
  }
  for (auto event = device.events.rbegin(); event != device.events.rend() && !segments.empty(); ++event) {
    if (event->action == HistoryEvent::Action::oom) continue;
    auto segment = segments.upper_bound(event->address);
    if (segment == segments.begin()) continue;
    --segment;
    if (event->address - segment->first >= segment->second->bytes) continue;
    event->pool = segment->second->pool;
    if (event->action == HistoryEvent::Action::segment_alloc && event->address == segment->first)
      segments.erase(segment);
  }
}

std::int64_t reserved_change(const HistoryEvent& event) {
  const auto bytes = static_cast<std::int64_t>(event.bytes);
  switch (event.action) {
    case HistoryEvent::Action::segment_alloc:
    case HistoryEvent::Action::segment_map:
      return bytes;
    case HistoryEvent::Action::segment_free:
    case HistoryEvent::Action::segment_unmap:
      return -bytes;
    default:
      return 0;
  }
}

std::int64_t reserved_at_end(const DeviceHistory& device) {
  std::int64_t reserved = 0;
  for (const HistorySegment& segment : device.segments) reserved += static_cast<std::int64_t>(segment.bytes);
  return reserved;
}

std::int64_t reserved_at_begin(const DeviceHistory& device) {
  std::int64_t reserved = reserved_at_end(device);
  for (const HistoryEvent& event : device.events) reserved -= reserved_change(event);
  return reserved;
}

namespace {

constexpr std::string_view kFile = "File \"";
constexpr std::string_view kLine = "\", line ";
constexpr std::string_view kFunction = ", in ";

}  // namespace

TracebackCall call_of_traceback(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const TracebackCall other{.file = "", .function = text};
  const std::size_t line = text.rfind(kLine);
  if (!text.starts_with(kFile) || line == std::string_view::npos) return other;
  TracebackCall call{.file = text.substr(kFile.size(), line - kFile.size()), .function = ""};
  const char* const number = text.data() + line + kLine.size();
  const auto [end, error] = std::from_chars(number, text.data() + text.size(), call.line);
  const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error != std::errc() || !rest.starts_with(kFunction)) return other;
  call.function = rest.substr(kFunction.size());
  return call;
}

std::string traceback_text(const TracebackCall& call) {
  return fmt::format("  {}{}{}{}{}{}\n", kFile, call.file, kLine, call.line, kFunction, call.function);
}

}  // namespace cachalot::tools
