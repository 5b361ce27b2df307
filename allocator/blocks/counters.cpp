#include "blocks/counters.h"

CACHALOT_BEGIN

namespace {

Stat sum_of(const Stat& small, const Stat& large, std::int64_t peak) {
  return {small.current + large.current, peak, small.allocated + large.allocated, small.freed + large.freed};
}

}  // namespace

void Counters::starts_waiting(PoolKind kind, std::int64_t block_bytes) {
  ++waiting_blocks_;
  add(kWaiting, kind, 1);
  add(kWaitingBytes, kind, block_bytes);
  raise_active_peaks();
}

void Counters::stops_waiting(PoolKind kind, std::int64_t block_bytes) {
  --waiting_blocks_;
  subtract(kWaiting, kind, 1);
  subtract(kWaitingBytes, kind, block_bytes);
}

// First to the heights between, for the peaks; then to where it is now.
void Counters::gathered(PoolKind kind, const Gathered& what) {
  raise_to_highest(kAllocation, kind, what.blocks);
  raise_to_highest(kAllocatedBytes, kind, what.bytes);
  raise_to_highest(kRequestedBytes, kind, what.requested);
  if (waiting_blocks_ != 0) raise_active_peaks();
  lower_to_current(kAllocation, kind, what.blocks);
  lower_to_current(kAllocatedBytes, kind, what.bytes);
  lower_to_current(kRequestedBytes, kind, what.requested);
}

void Counters::raise_to_highest(Figure figure, PoolKind kind, const Gathered::Figure& what) {
  add(figure, kind, what.highest);
  gauge(figure, kind).added += what.added - what.highest;
}

void Counters::lower_to_current(Figure figure, PoolKind kind, const Gathered::Figure& what) {
  subtract(figure, kind, what.highest - what.change);
}

void Counters::raise_active_peaks() {
  raise_active_peaks(active_, kAllocation, kWaiting);
  raise_active_peaks(active_bytes_, kAllocatedBytes, kWaitingBytes);
}

void Counters::raise_active_peaks(Active& active, Figure allocated, Figure waiting) {
  for (int kind = 0; kind < 2; ++kind) {
    const Gauge* gauges = kinds_[kind].gauges;
    active.peak[kind] = std::max(active.peak[kind], gauges[allocated].current + gauges[waiting].current);
  }
  active.all_peak = std::max(active.all_peak, current(allocated) + current(waiting));
}

StatArray Counters::array(Figure figure) const {
  const Stat small = kinds_[0].gauges[figure].stat();
  const Stat large = kinds_[1].gauges[figure].stat();
  return {sum_of(small, large, all_peak_[figure]), small, large};
}

// While nothing waits, active is allocated, and its peak is not below: the larger of the two peaks is active's.
StatArray Counters::active_array(const Active& active, Figure allocated, Figure waiting) const {
  Stat stats[2];
  for (int kind = 0; kind < 2; ++kind) {
    const Gauge& gauge = kinds_[kind].gauges[allocated];
    const std::int64_t current = gauge.current + kinds_[kind].gauges[waiting].current;
    stats[kind] = {current, std::max(active.peak[kind], gauge.peak), gauge.added,
                   active.at_reset[kind] + gauge.added - current};
  }
  return {sum_of(stats[0], stats[1], std::max(active.all_peak, all_peak_[allocated])), stats[0], stats[1]};
}

DeviceStats Counters::stats() const {
  DeviceStats stats;
  stats.allocation = array(kAllocation);
  stats.segment = array(kSegment);
  stats.active = active_array(active_, kAllocation, kWaiting);
  stats.inactive_split = array(kInactiveSplit);
  stats.allocated_bytes = array(kAllocatedBytes);
  stats.reserved_bytes = array(kReservedBytes);
  stats.active_bytes = active_array(active_bytes_, kAllocatedBytes, kWaitingBytes);
  stats.inactive_split_bytes = array(kInactiveSplitBytes);
  stats.requested_bytes = array(kRequestedBytes);
  stats.oversize_allocations = oversize_allocations_.stat();
  stats.oversize_segments = oversize_segments_.stat();
  stats.num_alloc_retries = events.alloc_retries;
  stats.num_ooms = events.ooms;
  stats.num_sync_all_streams = events.sync_all_streams;
  stats.num_device_alloc = events.device_alloc;
  stats.num_device_free = events.device_free;
  stats.max_split_size = max_split_size;
  return stats;
}

void Counters::reset_peak() {
  for (Kind& kind : kinds_) {
    for (Gauge& gauge : kind.gauges) gauge.peak = gauge.current;
  }
  for (int figure = 0; figure < kFigures; ++figure) all_peak_[figure] = current(static_cast<Figure>(figure));
  for (Gauge* gauge : {&oversize_allocations_, &oversize_segments_}) gauge->peak = gauge->current;
  for (Active* active : {&active_, &active_bytes_}) active->peak[0] = active->peak[1] = active->all_peak = 0;
  raise_active_peaks();
}

void Counters::reset_accumulated() {
  for (int kind = 0; kind < 2; ++kind) {
    Gauge* gauges = kinds_[kind].gauges;
    active_.at_reset[kind] = gauges[kAllocation].current + gauges[kWaiting].current;
    active_bytes_.at_reset[kind] = gauges[kAllocatedBytes].current + gauges[kWaitingBytes].current;
    for (int figure = 0; figure < kFigures; ++figure) gauges[figure].reset_accumulated();
  }
  oversize_allocations_.reset_accumulated();
  oversize_segments_.reset_accumulated();
  events = {};
}

CACHALOT_END
