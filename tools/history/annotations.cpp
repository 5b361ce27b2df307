#include "tools/history/annotations.h"

#include <algorithm>

#include "tools/history/address_map.h"

namespace cachalot::tools {

void complete_annotations(History& history, DeviceHistory& device) {
  using EventAction = HistoryEvent::Action;
  if (std::ranges::find(device.events, EventAction::annotate, &HistoryEvent::action) == device.events.end()) return;
  AddressMap details;  // of what lives; of what lived before the events they are not known
  for (HistoryEvent& event : device.events) {
    if (event.action == EventAction::alloc) details.set(event.address, event.details);
    if (event.action == EventAction::free_requested || event.action == EventAction::free_completed)
      details.erase(event.address);
    if (event.action != EventAction::annotate) continue;
    const std::uint32_t before = details.find(event.address);
    EventDetails merged = history.details[before == AddressMap::kNone ? 0 : before];
    const EventDetails& added = history.details[event.details];
    if (added.user_metadata != 0) merged.user_metadata = added.user_metadata;
    if (added.internal_metadata != 0) merged.internal_metadata = added.internal_metadata;
    event.details = history.details.add(merged);
    details.set(event.address, event.details);
  }
}

}  // namespace cachalot::tools
