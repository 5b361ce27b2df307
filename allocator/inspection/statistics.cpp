#include <algorithm>
#include <bit>

#include "base/bytes.h"
#include "inspection/inspection.h"

CACHALOT_BEGIN

namespace {

double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void add_free_block(const Block& block, Fragmentation& figures) {
  figures.free_bytes += block.size();
  figures.largest_free_bytes = std::max(figures.largest_free_bytes, block.size());
  ++figures.free_blocks;
  const auto entry = static_cast<std::size_t>(std::bit_width(block.size() / kBlockGranularity)) - 1;
  ++figures.free_block_histogram[std::min(entry, Fragmentation::kHistogramEntries - 1)];
}

}  // namespace

std::size_t Inspection::memory_allocated() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  return as_size(state_.counters.allocated_bytes());
}

std::size_t Inspection::memory_reserved() const {
  const DeviceLock lock(state_.mutex);
  return as_size(state_.counters.reserved_bytes());
}

std::size_t Inspection::max_memory_allocated() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  return as_size(state_.counters.max_allocated_bytes());
}

std::size_t Inspection::max_memory_reserved() const {
  const DeviceLock lock(state_.mutex);
  return as_size(state_.counters.max_reserved_bytes());
}

DeviceStats Inspection::stats() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  return state_.counters.stats();
}

AddedStats Inspection::added_stats() const {
  const DeviceLock lock(state_.mutex);
  return {state_.counters.num_oom_rejections, state_.pool_reserves.figures()};
}

void Inspection::reset_peak_stats() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  state_.counters.reset_peak();
  state_.pool_reserves.reset_peak();
}

void Inspection::reset_accumulated_stats() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  state_.counters.reset_accumulated();
  state_.pool_reserves.reset_accumulated();
}

// Blocks that wait for other streams count as allocated here, since what was requested of them still does.
Fragmentation Inspection::fragmentation() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  const DeviceStats stats = state_.counters.stats();
  Fragmentation figures;
  figures.requested_bytes = as_size(stats.requested_bytes.all.current);
  figures.allocated_bytes = as_size(stats.active_bytes.all.current);
  figures.reserved_bytes = as_size(stats.reserved_bytes.all.current);
  figures.peak_requested_bytes = as_size(stats.requested_bytes.all.peak);
  figures.peak_reserved_bytes = as_size(stats.reserved_bytes.all.peak);
  parts_.pools.for_each(
      [&](const BlockPool& pool) {
        if (is_asleep(pool)) return;
        for (const auto& arena : pool.arenas()) {
          arena->bins.for_each([&](const Block& block) { add_free_block(block, figures); });
        }
      },
      lock);
  if (figures.allocated_bytes != 0) figures.internal = 1 - ratio(figures.requested_bytes, figures.allocated_bytes);
  if (figures.free_bytes != 0) figures.external = 1 - ratio(figures.largest_free_bytes, figures.free_bytes);
  figures.reserved_ratio = ratio(figures.reserved_bytes, figures.allocated_bytes);
  figures.peak_ratio = ratio(figures.peak_reserved_bytes, figures.peak_requested_bytes);
  return figures;
}

std::size_t Inspection::largest_available(bool starting_from_free_memory) const {
  std::size_t largest = starting_from_free_memory ? state_.device->memory_info().free_bytes : 0;
  const DeviceLock lock(state_.mutex);
  parts_.pools.for_each(
      [&](const BlockPool& pool) {
        if (is_asleep(pool)) return;
        for (const auto& arena : pool.arenas()) {
          if (const Block* block = arena->bins.largest()) largest = std::max(largest, block->size());
        }
      },
      lock);
  return largest;
}

CACHALOT_END
