#include "cachalot/allocator_figures.h"

#include "cachalot/caching_allocator.h"
#include "groups/allocator_state.h"

CACHALOT_BEGIN

std::size_t AllocatorFigures::memory_allocated(int device) const {
  return state_.at(device).inspection.memory_allocated();
}
std::size_t AllocatorFigures::memory_reserved(int device) const {
  return state_.at(device).inspection.memory_reserved();
}
std::size_t AllocatorFigures::max_memory_allocated(int device) const {
  return state_.at(device).inspection.max_memory_allocated();
}
std::size_t AllocatorFigures::max_memory_reserved(int device) const {
  return state_.at(device).inspection.max_memory_reserved();
}
DeviceStats AllocatorFigures::memory_stats(int device) const { return state_.at(device).inspection.stats(); }
AddedStats AllocatorFigures::added_stats(int device) const { return state_.at(device).inspection.added_stats(); }
DeviceUsage AllocatorFigures::device_usage(int device) const { return state_.at(device).inspection.usage(); }
Fragmentation AllocatorFigures::fragmentation(int device) const { return state_.at(device).inspection.fragmentation(); }

Snapshot AllocatorFigures::snapshot(PoolId pool, bool include_traces) {
  Snapshot snapshot;
  snapshot.options = state_.current_options();
  for (const auto& allocator : state_.devices()) allocator->inspection.snapshot_into(snapshot, pool, include_traces);
  return snapshot;
}

void AllocatorFigures::reset_peak_stats(int device) {
  for (DeviceAllocator* allocator : state_.selected(device)) allocator->inspection.reset_peak_stats();
}

void AllocatorFigures::reset_accumulated_stats(int device) {
  for (DeviceAllocator* allocator : state_.selected(device)) allocator->inspection.reset_accumulated_stats();
}

std::size_t AllocatorFigures::largest_available(int device, bool starting_from_free_memory) {
  return state_.at(device).inspection.largest_available(starting_from_free_memory);
}

std::string AllocatorFigures::validate() const {
  for (const auto& allocator : state_.devices()) {
    if (std::string broken = allocator->inspection.validate(); !broken.empty()) return broken;
  }
  for (const auto& guard : state_.guards()) {
    if (std::string broken = guard->validate(); !broken.empty()) return broken;
  }
  return "";
}

std::size_t AllocatorFigures::metadata_bytes() const {
  state_.require_own_process();
  std::size_t bytes = sizeof(CachingAllocator) + sizeof(AllocatorState) + state_.page_map().metadata_bytes();
  for (const auto& allocator : state_.devices()) bytes += allocator->inspection.metadata_bytes(sizeof(DeviceAllocator));
  for (const auto& guard : state_.guards()) bytes += guard->metadata_bytes();
  return bytes;
}

CACHALOT_END
