#include "tools/history/pools.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace cachalot::tools {

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
