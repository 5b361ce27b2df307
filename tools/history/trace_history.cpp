#include <cstdint>
#include <utility>
#include <vector>

#include "tools/foreign_files.h"
#include "tools/history/text_histories.h"
#include "tools/history/text_lines.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {
namespace {

constexpr unsigned kSlotBits = 36;  // each slot of a trace has an address of its own, 64 GiB apart

bool is_line_of_rmm(std::string_view line) {
  std::vector<std::string_view> fields;
  split(line, fields);
  if (fields.size() != 6) return false;
  return fields[2] == "allocate" || fields[2] == "free" || fields[2] == "allocate failure";
}

}  // namespace

std::optional<HistoryFormat> text_format(std::string_view begin) {
  const std::string_view first = trimmed(begin.substr(0, begin.find('\n')));
  if (looks_like_trace(begin)) return HistoryFormat::cachalot_trace;
  if (first.starts_with("Thread,Time,Action,") || is_line_of_rmm(first)) return HistoryFormat::rmm_csv;
  return std::nullopt;
}

History read_trace_history(InputFile file) {
  TextHistory made(file, HistoryFormat::cachalot_trace);
  const Trace trace = read_trace(std::move(file));
  std::vector<HistoryEvent> live(trace.slots);
  made.budget().charge(live.size() * sizeof(HistoryEvent));
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t) {
    for (const TraceEvent& event : events) {
      HistoryEvent& allocation = live[event.slot];
      if (!event.is_free()) {
        allocation = {.address = (Address{event.slot} + 1) << kSlotBits,
                      .bytes = event.bytes,
                      .stream = made.stream(reinterpret_cast<std::uintptr_t>(trace.streams[event.stream]))};
      }
      allocation.time_us = static_cast<std::int64_t>(made.events());
      event.is_free() ? made.add_free(allocation) : made.add(allocation);
    }
    return true;
  });
  return made.finish();
}

}  // namespace cachalot::tools
