#include "tools/history/history.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "tools/history/snapshot_history.h"
#include "tools/history/text_histories.h"

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
  if (has_pools(device)) return;
  std::map<Address, const HistorySegment*> segments;  // with a pool, that were there at the event and are at the end
  for (const HistorySegment& segment : device.segments) {
    if (segment.pool != 0) segments.emplace(segment.address, &segment);
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

}  // namespace cachalot::tools
