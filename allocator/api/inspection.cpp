#include "api/inspection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"

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
  return {state_.counters.events.oom_rejections, state_.pool_reserves.figures()};
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

// Blocks that wait for other streams count as allocated here, since their requested bytes still do.
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

SegmentSnapshot Inspection::picture(const Block& head, const Held& held) const {
  using State = BlockSnapshot::State;
  const auto context_of = [&](const Block& block, Context BlockDetail::*which) {
    holds(held);
    const BlockDetail* detail = state_.blocks.slab().find_detail(block);
    return detail == nullptr ? nullptr : detail->*which;
  };
  const BlockPool& pool = head.arena->pool;
  SegmentSnapshot segment;
  segment.device = state_.index;
  segment.address = head.address;
  segment.stream = head.arena->stream.handle;
  segment.segment_type = pool.kind();
  segment.segment_pool_id = pool.id();
  segment.is_expandable = pool.growth->is_expandable();
  segment.number = state_.blocks.segment_number(head);
  segment.context = context_of(head, &BlockDetail::segment_context);
  for (const Block* block = &head; !block->is_edge(); block = block->next) {
    const bool is_idle = block->is_unused() || block->is_cached();
    const State state = block->is_live() ? State::active_allocated
                        : is_idle        ? State::inactive
                                         : State::active_pending_free;
    const std::size_t requested = is_idle ? std::size_t{block->requested} : block->requested_bytes();
    segment.total_size += block->size();
    if (state == State::active_allocated) segment.allocated_size += block->size();
    if (state != State::inactive) segment.active_size += block->size();
    if (state != State::inactive) segment.requested_size += requested;
    const Context context = state == State::inactive ? nullptr : context_of(*block, &BlockDetail::context);
    segment.blocks.push_back({block->address, block->size(), requested, state, context});
  }
  if (is_asleep(pool)) {
    const Address end = segment.address + segment.total_size;
    segment.asleep_size = pool.growth->asleep_bytes(segment.address, end, held);
  }
  return segment;
}

void Inspection::snapshot_into(Snapshot& snapshot, PoolId pool, bool include_traces) {
  const DeviceLock lock(state_.mutex);
  if (include_traces) snapshot.device_traces.push_back(state_.observers.entries(lock));
  const ThreadCaches::Recall hold(state_.caches.get());
  std::size_t active_bytes = 0;
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (!pool.is_default() && head->arena->pool.id() != pool) continue;
    snapshot.segments.push_back(picture(*head, lock));
    active_bytes += snapshot.segments.back().active_size;
  }
  state_.observers.observe({.action = Change::Action::snapshot, .bytes = active_bytes, .pool = pool}, lock);
}

void Inspection::add_segment_tracker(std::shared_ptr<SegmentTracker> tracker) {
  DeviceLock lock(state_.mutex);
  const Growing growing(state_.growth_mutex, lock);  // then no memory is on its way to the device or from it
  SegmentTracker& added = *tracker;
  state_.observers.add_segment_tracker(std::move(tracker), growing);
  for (const auto& [address, head] : state_.blocks.segments()) tell_of_segment(*head, added, growing);
}

// Tells the tracker of a segment's memory: page by page where a part of it may be asleep.
void Inspection::tell_of_segment(const Block& head, SegmentTracker& tracker, const Held& held) const {
  const BlockPool& pool = head.arena->pool;
  const bool in_pages = pool.growth->is_expandable();
  const BlockDetail* const detail = state_.blocks.slab().find_detail(head);
  Change change = Observers::change_of(Change::Action::segment_alloc, head, detail ? detail->segment_context : nullptr);
  if (in_pages) change.action = Change::Action::segment_map;
  change.device = state_.index;
  change.time_us = state_.device->clock_us();
  Address end = head.address;
  for (const Block* block = &head; !block->is_edge(); block = block->next) end = block->end();
  const bool may_sleep = in_pages && is_asleep(pool);
  change.bytes = may_sleep ? state_.device->properties().page_bytes : end - head.address;
  for (; change.address < end; change.address += change.bytes) {
    if (may_sleep && pool.growth->asleep_bytes(change.address, change.address + change.bytes, held) != 0) continue;
    tracker.on_segment(change);
  }
}

std::optional<TagMemory> Inspection::tag_memory(PoolId id) const {
  const DeviceLock lock(state_.mutex);
  const PrivatePool* const pool = parts_.pools.find(id, lock);
  if (pool == nullptr) return std::nullopt;
  const ThreadCaches::Recall hold(state_.caches.get());
  TagMemory memory;
  memory.is_asleep = pool->is_asleep;
  memory.pool = id;
  memory.is_evictable = pool->evictable.has_value();
  if (pool->evictable) memory.priority = pool->evictable->priority;
  memory.holds = pool->hold_count;
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (head->arena->pool.id() != id) continue;
    const SegmentSnapshot segment = picture(*head, lock);
    memory.allocated_bytes += segment.allocated_size;
    memory.requested_bytes += segment.requested_size;
    memory.reserved_bytes += segment.total_size - segment.asleep_size;
    memory.asleep_bytes += segment.asleep_size;
  }
  return memory;
}

namespace {

void add_free_blocks(const BlockPool& pool, PoolUsage& usage) {
  for (const auto& arena : pool.arenas()) {
    const auto add = [&](const Block& block) {
      usage.free_bytes += block.size();
      usage.largest_free_bytes = std::max(usage.largest_free_bytes, block.size());
      ++usage.free_blocks;
    };
    arena->bins.for_each_of_at_least(PowerOfTwo(kBlockGranularity), add);
  }
}

}  // namespace

DeviceUsage Inspection::usage() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  DeviceUsage usage{state_.counters.stats(), state_.counters.events.oom_rejections, std::vector<PoolUsage>(1)};
  PoolUsage& default_pool = usage.pools.front();
  default_pool.reserved_bytes = as_size(state_.counters.reserved_bytes());
  for (const auto* pools : {&state_.default_pools, &state_.plain_pools}) {
    for (const BlockPool& pool : *pools) add_free_blocks(pool, default_pool);
  }

  const PoolReserves::Figures& reserves = state_.pool_reserves.figures();
  bool has_sleepers = false;
  for (const auto& [id, pool] : parts_.pools.all(lock)) {
    PoolUsage of_pool;
    of_pool.pool = id;
    of_pool.tag = pool->tag;
    of_pool.is_asleep = pool->is_asleep;
    if (const auto found = reserves.find(id); found != reserves.end()) {
      of_pool.reserved_bytes = as_size(found->second.all.current);
    }
    if (!pool->is_asleep) {
      add_free_blocks(pool->small, of_pool);
      add_free_blocks(pool->large, of_pool);
      for (const BlockPool& plain : pool->plain) add_free_blocks(plain, of_pool);
    }
    usage.pools.front().reserved_bytes -= of_pool.reserved_bytes;
    has_sleepers = has_sleepers || pool->is_asleep;
    usage.pools.push_back(std::move(of_pool));
  }
  if (has_sleepers) add_asleep_bytes(usage, lock);
  return usage;
}

void Inspection::add_asleep_bytes(DeviceUsage& usage, const Held& held) const {
  for (const auto& [address, head] : state_.blocks.segments()) {
    const BlockPool& pool = head->arena->pool;
    if (!is_asleep(pool)) continue;
    Address end = address;
    for (const Block* block = head; !block->is_edge(); block = block->next) end = block->end();
    const auto of_pool = std::ranges::find(usage.pools, pool.id(), &PoolUsage::pool);
    of_pool->asleep_bytes += pool.growth->asleep_bytes(address, end, held);
  }
}

namespace {

// The statistics that a walk over the blocks finds.
class Walk {
 public:
  explicit Walk(const HeapState& state) : state_(state) {}

  DeviceStats stats(const Held& held) {
    holds(held);
    for (const auto& [address, head] : state_.blocks.segments()) {
      add_run(*head, held);
    }
    return found_;
  }

 private:
  static void add(PoolKind kind, StatArray& stat, std::size_t amount) {
    (kind == PoolKind::small ? stat.small_pool : stat.large_pool).current += as_signed(amount);
    stat.all.current += as_signed(amount);
  }

  void add_run(const Block& head, const Held& held) {
    holds(held);
    const Growth& growth = *head.arena->pool.growth;
    const PoolKind reserved_in = growth.reserved_in(head, held);
    if (!growth.is_expandable()) add(reserved_in, found_.segment, 1);
    std::size_t bytes = 0;
    for (const Block* block = &head; !block->is_edge(); block = block->next) {
      bytes += block->size();
      add_block(*block, held);
    }
    const bool sleeps = is_asleep(head.arena->pool);
    const std::size_t asleep = sleeps ? growth.asleep_bytes(head.address, head.address + bytes, held) : 0;
    add(reserved_in, found_.reserved_bytes, bytes - asleep);
  }

  void add_block(const Block& block, const Held& held) {
    holds(held);
    const PoolKind kind = block.arena->pool.kind();
    if (block.is_live()) {
      add(kind, found_.allocation, 1);
      add(kind, found_.allocated_bytes, block.size());
    }
    if (!block.is_unused() && !block.is_cached()) {
      add(kind, found_.active, 1);
      add(kind, found_.active_bytes, block.size());
      add(kind, found_.requested_bytes, block.requested_bytes());
    } else if (block.is_free() && block.is_split() && !block.arena->in_ranges) {
      add(kind, found_.inactive_split, 1);
      add(kind, found_.inactive_split_bytes, block.size());
    }
  }

  const HeapState& state_;
  DeviceStats found_;
};

bool differs(const StatArray& a, const StatArray& b) {
  return a.all.current != b.all.current || a.small_pool.current != b.small_pool.current ||
         a.large_pool.current != b.large_pool.current;
}

}  // namespace

std::string Inspection::validate() {
  const DeviceLock lock(state_.mutex);
  const ThreadCaches::Recall hold(state_.caches.get());
  if (state_.caches != nullptr) {
    parts_.caches.gather_recalled(lock);
    if (std::string broken = validate_caches(lock); !broken.empty()) return broken;
  }
  if (std::string broken = state_.blocks.validate(); !broken.empty()) return broken;
  for (const Growth* growth : parts_.growths) {
    if (std::string broken = growth->validate(lock); !broken.empty()) return broken;
  }
  if (std::string broken = validate_bins(lock); !broken.empty()) return broken;
  if (std::string broken = parts_.sleeping.validate(lock); !broken.empty()) return broken;
  if (std::string broken = validate_counters(lock); !broken.empty()) return broken;
  return state_.ledger.validate(lock);
}

// Every free block is in the bins of its arena, and nothing else is.
std::string Inspection::validate_bins(const Held& held) const {
  std::string broken;
  std::size_t binned = 0;
  parts_.pools.for_each(
      [&](const BlockPool& pool) {
        for (const auto& arena : pool.arenas()) {
          if (std::string wrong = arena->bins.validate(); !wrong.empty()) broken = wrong;
          arena->bins.for_each([&](const Block& block) {
            ++binned;
            if (block.arena != arena.get()) broken = formatted("block {:#x} is in another arena's bins", block.address);
          });
        }
      },
      held);
  std::size_t free = 0;
  for (const auto& [address, head] : state_.blocks.segments()) {
    for (const Block* block = head; !block->is_edge(); block = block->next) free += block->is_free() ? 1 : 0;
  }
  if (broken.empty() && binned != free) broken = formatted("{} blocks are free but {} are in bins", free, binned);
  return broken;
}

// Checks that blocks marked as cached and not handed out are in a cache, and no others.
std::string Inspection::validate_caches(const Held& /*held*/) const {
  std::size_t idle = 0;
  for (const auto& [address, head] : state_.blocks.segments()) {
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      idle += block->is_cached() ? 1 : 0;
    }
  }
  return state_.caches->validate(idle);
}

// The counters say what a walk over the blocks finds. Bytes on the way from one hole to another are in no block.
std::string Inspection::validate_counters(const Held& held) const {
  const DeviceStats walked = Walk(state_).stats(held);
  const DeviceStats kept = state_.counters.stats();
  const std::array<std::pair<const char*, StatArray DeviceStats::*>, 9> statistics = {{
      {"segment", &DeviceStats::segment},
      {"reserved_bytes", &DeviceStats::reserved_bytes},
      {"allocation", &DeviceStats::allocation},
      {"allocated_bytes", &DeviceStats::allocated_bytes},
      {"active", &DeviceStats::active},
      {"active_bytes", &DeviceStats::active_bytes},
      {"requested_bytes", &DeviceStats::requested_bytes},
      {"inactive_split", &DeviceStats::inactive_split},
      {"inactive_split_bytes", &DeviceStats::inactive_split_bytes},
  }};
  const bool moves = state_.ledger.moving_bytes(held) != 0;
  for (const auto& [name, statistic] : statistics) {
    if (moves && statistic == &DeviceStats::reserved_bytes) continue;
    if (differs(walked.*statistic, kept.*statistic))
      return formatted("statistic '{}' differs from the blocks there are", name);
  }
  return "";
}

std::size_t Inspection::metadata_bytes(std::size_t allocator_bytes) const {
  const DeviceLock lock(state_.mutex);
  std::size_t bytes = allocator_bytes + state_.blocks.metadata_bytes() + parts_.frees.metadata_bytes(lock) +
                      state_.observers.metadata_bytes(lock);
  for (const Growth* growth : parts_.growths) bytes += growth->metadata_bytes(lock);
  if (state_.caches != nullptr) bytes += state_.caches->metadata_bytes();
  parts_.pools.for_each(
      [&](const BlockPool& pool) {
        for (const auto& arena : pool.arenas()) bytes += sizeof(Arena) + arena->bins.metadata_bytes();
      },
      lock);
  return bytes;
}

CACHALOT_END
