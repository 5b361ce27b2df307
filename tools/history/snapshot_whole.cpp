// The end of a snapshot: its lists, which are read by then, become a history.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cachalot/caching_allocator.h"
#include "tools/history/address_map.h"
#include "tools/history/pools.h"
#include "tools/history/snapshot_builder.h"

namespace cachalot::tools {
namespace {

// Gives each annotation (PyTorch's annotate, since 2.14) the details that its allocation has from then on: those it had, with
// the new metadata. Takes time only where a history has annotations.
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

}  // namespace

History SnapshotBuilder::finish(Part root) {
  where_ = {};
  const Container* const whole = parts_.find(root);
  require(whole != nullptr, "it is {}, not a dict or a list of segments", root.kind_name());
  if (whole->kind == Container::Kind::dict) {
    take_root(Pairs(whole->parts));
  } else {  // torch.cuda.memory_snapshot()
    take_segments(root, "segments", devices_);
  }
  parts_.clear();
  for (auto& [store, device] : traces_) device->events = events_[store].take();
  for (auto& [number, device] : devices_) {
    complete_annotations(history_, device);
    complete_pools(device);
  }
  for (auto& [number, device] : host_) complete_annotations(history_, device);
  move_devices(devices_, history_.devices);
  move_devices(host_, history_.host);
  return std::move(history_);
}

void SnapshotBuilder::take_root(const Pairs& pairs) {
  const Part* const segments = find(pairs, Word::segments);
  require(segments != nullptr, "'segments' is missing");
  take_segments(*segments, "segments", devices_);
  if (const Part* traces = find(pairs, Word::device_traces)) take_traces(*traces, "device_traces", devices_);
  if (const Part* of_host = find(pairs, Word::host_segments)) take_segments(*of_host, "host_segments", host_);
  if (const Part* of_host = find(pairs, Word::host_traces)) take_traces(*of_host, "host_traces", host_);
  if (const Part* annotations = find(pairs, Word::external_annotations)) take_stages(*annotations);
  if (const Part* settings = find(pairs, Word::allocator_settings)) take_settings(*settings);
  if (const Part* own = find(pairs, Word::cachalot)) take_facts(*own);
}

void SnapshotBuilder::take_segments(Part value, const char* key, Devices& devices) {
  const Container* const list = parts_.find(parts_.resolved(value));
  if (list != nullptr && list->kind == Container::Kind::blocks) {  // pinned host memory: each block by itself
    DeviceHistory& device = devices[0];
    for (const HistoryBlock& block : block_lists_[list->store]) {
      device.segments.push_back({.address = block.address,
                                 .bytes = block.bytes,
                                 .first_block = device.blocks.size(),
                                 .block_count = 1,
                                 .stack = block.stack});
      device.blocks.push_back(block);
    }
    return;
  }
  const Container* const taken = list_of(value, Container::Kind::segments, key);
  where_ = {};
  if (taken == nullptr) return;
  for (const DeviceSegment& of_device : segments_[taken->store]) {
    require(of_device.device != kHost || &devices == &host_, "a segment of '{}' has the device -1", key);
    DeviceHistory& device = devices[std::max(of_device.device, 0)];
    device.segments.push_back(of_device.segment);
    device.segments.back().first_block = device.blocks.size();
    const auto first = blocks_.begin() + static_cast<std::ptrdiff_t>(of_device.segment.first_block);
    device.blocks.insert(device.blocks.end(), first,
                         first + static_cast<std::ptrdiff_t>(of_device.segment.block_count));
  }
}

// A list for each device, or, of the host, the entries themselves.
void SnapshotBuilder::take_traces(Part value, const char* key, Devices& devices) {
  value = parts_.resolved(value);
  const Container* const lists = parts_.find(value);
  require(lists != nullptr && lists->kind != Container::Kind::dict, "'{}' is {}, not a list", key,
          lists == nullptr ? value.kind_name() : "a dict");
  if (lists->kind == Container::Kind::events) return traces_of(value, key, devices[0]);
  require(lists->kind == Container::Kind::list, "'{}' is a list of something else", key);
  require(lists->parts.size() <= kMostDevices, "histories of {} devices: at most {}", lists->parts.size(),
          kMostDevices);
  const Pairs items = lists->parts;
  for (std::size_t device = 0; device < items.size(); ++device) {
    where_ = {"the history of device", device};
    if (list_of(items[device], Container::Kind::events, key) != nullptr) {
      traces_of(items[device], key, devices[static_cast<int>(device)]);
    }
  }
  where_ = {};
}

void SnapshotBuilder::traces_of(Part list, const char* key, DeviceHistory& device) {
  const Container* const events = list_of(list, Container::Kind::events, key);
  const auto [known, is_new] = traces_.try_emplace(events->store, &device);
  require(is_new || known->second == &device, "two devices have one history");
}

void SnapshotBuilder::take_stages(Part value) {
  const Container* const list = list_of(value, Container::Kind::stages, "external_annotations");
  where_ = {};
  if (list == nullptr) return;
  history_.stages = std::move(stages_[list->store]);
  std::ranges::stable_sort(history_.stages, {}, &StageMark::time_us);
}

void SnapshotBuilder::take_settings(Part value) {
  const Container* const settings = parts_.find(parts_.resolved(value));
  if (settings == nullptr || settings->kind != Container::Kind::dict) return;
  const Part* const conf = find(settings->parts, Word::conf);
  if (conf != nullptr && conf->is_text()) history_.settings = history_.texts[conf->id()];
}

void SnapshotBuilder::move_devices(Devices& from, std::vector<DeviceHistory>& to) {
  for (auto& [number, device] : from) {
    if (device.events.empty() && device.segments.empty()) continue;
    device.device = number;
    to.push_back(std::move(device));
  }
}

}  // namespace cachalot::tools
