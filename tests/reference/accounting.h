// Statistics had in two other ways: from the stream of changes, and by counting a picture.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cachalot/events.h"
#include "cachalot/options.h"
#include "cachalot/stats.h"

namespace cachalot {

inline void adjust(Stat& stat, std::int64_t amount) {
  stat.current += amount;
  stat.peak = std::max(stat.peak, stat.current);
  if (amount > 0) stat.allocated += amount;
  if (amount < 0) stat.freed -= amount;
}

inline void adjust(StatArray& stat, PoolKind kind, std::int64_t amount) {
  adjust(stat.all, amount);
  adjust(kind == PoolKind::small ? stat.small_pool : stat.large_pool, amount);
}

// Calls function(name, stat) for each of the 29 Stats, PyTorch's names.
template <typename Function>
void for_each_named_stat(DeviceStats& stats, Function function) {
  const auto each = [&](const std::string& name, StatArray& array) {
    function(name + ".all", array.all);
    function(name + ".small_pool", array.small_pool);
    function(name + ".large_pool", array.large_pool);
  };
  each("allocation", stats.allocation);
  each("segment", stats.segment);
  each("active", stats.active);
  each("inactive_split", stats.inactive_split);
  each("allocated_bytes", stats.allocated_bytes);
  each("reserved_bytes", stats.reserved_bytes);
  each("active_bytes", stats.active_bytes);
  each("inactive_split_bytes", stats.inactive_split_bytes);
  each("requested_bytes", stats.requested_bytes);
  function("oversize_allocations", stats.oversize_allocations);
  function("oversize_segments", stats.oversize_segments);
}

template <typename Function>
void for_each_stat(DeviceStats& stats, Function function) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat* stat : {&array->all, &array->small_pool, &array->large_pool}) function(*stat);
  }
  function(stats.oversize_allocations);
  function(stats.oversize_segments);
}

// Returns the figures that differ, one per line, with both values; "" when none does.
inline std::string difference(DeviceStats actual, DeviceStats expected) {
  if (actual == expected) return {};
  std::string text;
  const auto compare = [&](const std::string& name, std::int64_t got, std::int64_t wanted) {
    if (got != wanted) text += name + " is " + std::to_string(got) + ", not " + std::to_string(wanted) + "\n";
  };
  std::vector<Stat> wanted;
  for_each_named_stat(expected, [&](const std::string&, Stat& stat) { wanted.push_back(stat); });
  std::size_t i = 0;
  for_each_named_stat(actual, [&](const std::string& name, Stat& stat) {
    compare(name + ".current", stat.current, wanted[i].current);
    compare(name + ".peak", stat.peak, wanted[i].peak);
    compare(name + ".allocated", stat.allocated, wanted[i].allocated);
    compare(name + ".freed", stat.freed, wanted[i].freed);
    ++i;
  });
  compare("num_alloc_retries", actual.num_alloc_retries, expected.num_alloc_retries);
  compare("num_ooms", actual.num_ooms, expected.num_ooms);
  compare("num_sync_all_streams", actual.num_sync_all_streams, expected.num_sync_all_streams);
  compare("num_device_alloc", actual.num_device_alloc, expected.num_device_alloc);
  compare("num_device_free", actual.num_device_free, expected.num_device_free);
  compare("max_split_size", actual.max_split_size, expected.max_split_size);
  return text;
}

// The fold of one device's changes. The oversize figures follow `max_split_size`, which the caller keeps up to date.
class StatsFold {
 public:
  explicit StatsFold(std::size_t first_max_split_size = Options::kUnlimited) : max_split_size(first_max_split_size) {
    if (max_split_size != Options::kUnlimited) stats.max_split_size = static_cast<std::int64_t>(max_split_size);
  }

  void operator()(const Change& change) {
    const PoolKind kind = change.pool_kind;
    const auto bytes = static_cast<std::int64_t>(change.bytes);
    const auto block_bytes = static_cast<std::int64_t>(change.block_bytes);
    switch (change.action) {
      case Change::Action::alloc:
        adjust(stats.allocation, kind, 1);
        adjust(stats.allocated_bytes, kind, block_bytes);
        adjust(stats.active, kind, 1);
        adjust(stats.active_bytes, kind, block_bytes);
        adjust(stats.requested_bytes, kind, bytes);
        if (change.block_bytes >= max_split_size) adjust(stats.oversize_allocations, 1);
        break;
      case Change::Action::free_requested:
        adjust(stats.allocation, kind, -1);
        adjust(stats.allocated_bytes, kind, -block_bytes);
        if (change.block_bytes >= max_split_size) adjust(stats.oversize_allocations, -1);
        break;
      case Change::Action::free_completed:
        adjust(stats.active, kind, -1);
        adjust(stats.active_bytes, kind, -block_bytes);
        adjust(stats.requested_bytes, kind, -bytes);
        break;
      case Change::Action::segment_alloc:
        adjust(stats.segment, kind, 1);
        adjust(stats.reserved_bytes, kind, bytes);
        if (change.bytes >= max_split_size) adjust(stats.oversize_segments, 1);
        ++stats.num_device_alloc;
        break;
      case Change::Action::segment_free:
        adjust(stats.segment, kind, -1);
        adjust(stats.reserved_bytes, kind, -bytes);
        if (change.bytes >= max_split_size) adjust(stats.oversize_segments, -1);
        ++stats.num_device_free;
        break;
      case Change::Action::oom:
        ++stats.num_ooms;
        break;
      case Change::Action::synchronize:
        ++stats.num_sync_all_streams;
        break;
      case Change::Action::retry:
        ++stats.num_alloc_retries;
        break;
      case Change::Action::segment_map:
      case Change::Action::segment_unmap:
      case Change::Action::snapshot:
      case Change::Action::empty_cache:
      case Change::Action::annotate:
        break;
    }
    adjust(stats.inactive_split, kind, change.inactive_split_blocks);
    adjust(stats.inactive_split_bytes, kind, change.inactive_split_bytes);
  }

  void reset_peak() {
    for_each_stat(stats, [](Stat& stat) { stat.peak = stat.current; });
  }
  void reset_accumulated() {
    for_each_stat(stats, [](Stat& stat) { stat.allocated = stat.freed = 0; });
    stats.num_alloc_retries = stats.num_ooms = stats.num_sync_all_streams = 0;
    stats.num_device_alloc = stats.num_device_free = 0;
  }

  std::size_t max_split_size;
  DeviceStats stats;
};

// The statistics' current values as a picture of one device's memory shows them; nothing but `current` is filled in.
inline DeviceStats recount(const Snapshot& snapshot, int device) {
  DeviceStats stats;
  const auto count = [](StatArray& stat, PoolKind kind, std::size_t amount) {
    stat.all.current += static_cast<std::int64_t>(amount);
    (kind == PoolKind::small ? stat.small_pool : stat.large_pool).current += static_cast<std::int64_t>(amount);
  };
  for (const SegmentSnapshot& segment : snapshot.segments) {
    if (segment.device != device) continue;
    const PoolKind kind = segment.segment_type;
    count(stats.segment, kind, 1);
    count(stats.reserved_bytes, kind, segment.total_size);
    for (const BlockSnapshot& block : segment.blocks) {
      if (block.state == BlockSnapshot::State::inactive) {
        if (block.size == segment.total_size) continue;
        count(stats.inactive_split, kind, 1);
        count(stats.inactive_split_bytes, kind, block.size);
        continue;
      }
      count(stats.active, kind, 1);
      count(stats.active_bytes, kind, block.size);
      count(stats.requested_bytes, kind, block.requested_size);
      if (block.state == BlockSnapshot::State::active_pending_free) continue;
      count(stats.allocation, kind, 1);
      count(stats.allocated_bytes, kind, block.size);
    }
  }
  return stats;
}

// `stats` with nothing but the current values of the nine arrays, to compare with recount.
inline DeviceStats only_current(DeviceStats stats) {
  for_each_stat(stats, [](Stat& stat) { stat = Stat{stat.current, 0, 0, 0}; });
  DeviceStats result;
  result.allocation = stats.allocation;
  result.segment = stats.segment;
  result.active = stats.active;
  result.inactive_split = stats.inactive_split;
  result.allocated_bytes = stats.allocated_bytes;
  result.reserved_bytes = stats.reserved_bytes;
  result.active_bytes = stats.active_bytes;
  result.inactive_split_bytes = stats.inactive_split_bytes;
  result.requested_bytes = stats.requested_bytes;
  return result;
}

// Makes equal what only the segment heap counts as its snapshot shows it: the page heap has one kind of memory for small
// and large, and counts no segments and no split blocks; memory in a thread's cache does not count as one either.
inline void keep_sums_alone(DeviceStats& counted, const DeviceStats& told) {
  counted.segment = told.segment;
  counted.inactive_split = told.inactive_split;
  counted.inactive_split_bytes = told.inactive_split_bytes;
  for (const auto member : {&DeviceStats::allocation, &DeviceStats::active, &DeviceStats::allocated_bytes,
                            &DeviceStats::reserved_bytes, &DeviceStats::active_bytes, &DeviceStats::requested_bytes}) {
    (counted.*member).small_pool = (told.*member).small_pool;
    (counted.*member).large_pool = (told.*member).large_pool;
  }
}

}  // namespace cachalot
