// What DeviceAllocator tells: statistics, fragmentation, snapshot, history, and whether its tables are sound.
#include <algorithm>
#include <bit>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"
#include "device_allocator.h"

namespace cachalot {

namespace {

double ratio(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

// --- statistics -----------------------------------------------------------------------------------------------------

std::size_t DeviceAllocator::memory_allocated() {
  const Lock lock(mutex_);
  gather_all();
  return as_size(counters_.allocated_bytes());
}

std::size_t DeviceAllocator::memory_reserved() const {
  const Lock lock(mutex_);
  return as_size(counters_.reserved_bytes());
}

std::size_t DeviceAllocator::max_memory_allocated() {
  const Lock lock(mutex_);
  gather_all();
  return as_size(counters_.max_allocated_bytes());
}

std::size_t DeviceAllocator::max_memory_reserved() const {
  const Lock lock(mutex_);
  return as_size(counters_.max_reserved_bytes());
}

DeviceStats DeviceAllocator::stats() {
  const Lock lock(mutex_);
  gather_all();
  return counters_.stats();
}

void DeviceAllocator::reset_peak_stats() {
  const Lock lock(mutex_);
  gather_all();
  counters_.reset_peak();
}

void DeviceAllocator::reset_accumulated_stats() {
  const Lock lock(mutex_);
  gather_all();
  counters_.reset_accumulated();
}

// Blocks that wait for other streams count as allocated here, since what was requested of them still does.
Fragmentation DeviceAllocator::fragmentation() {
  const Lock lock(mutex_);
  gather_all();
  const DeviceStats stats = counters_.stats();
  Fragmentation figures;
  figures.requested_bytes = as_size(stats.requested_bytes.all.current);
  figures.allocated_bytes = as_size(stats.active_bytes.all.current);
  figures.reserved_bytes = as_size(stats.reserved_bytes.all.current);
  figures.peak_requested_bytes = as_size(stats.requested_bytes.all.peak);
  figures.peak_reserved_bytes = as_size(stats.reserved_bytes.all.peak);
  for_each_pool([&](const BlockPool& pool) {
    if (is_asleep(pool)) return;
    for (const auto& arena : pool.arenas()) {
      arena->bins.for_each([&](const Block& block) {
        figures.free_bytes += block.size();
        figures.largest_free_bytes = std::max(figures.largest_free_bytes, block.size());
        ++figures.free_blocks;
        const auto entry = static_cast<std::size_t>(std::bit_width(block.size() / kBlockGranularity)) - 1;
        ++figures.free_block_histogram[std::min(entry, Fragmentation::kHistogramEntries - 1)];
      });
    }
  });
  if (figures.allocated_bytes != 0) figures.internal = 1 - ratio(figures.requested_bytes, figures.allocated_bytes);
  if (figures.free_bytes != 0) figures.external = 1 - ratio(figures.largest_free_bytes, figures.free_bytes);
  figures.reserved_ratio = ratio(figures.reserved_bytes, figures.allocated_bytes);
  figures.peak_ratio = ratio(figures.peak_reserved_bytes, figures.peak_requested_bytes);
  return figures;
}

std::size_t DeviceAllocator::largest_available(bool starting_from_free_memory) {
  std::size_t largest = starting_from_free_memory ? device_->memory_info().free_bytes : 0;
  const Lock lock(mutex_);
  for_each_pool([&](const BlockPool& pool) {
    if (is_asleep(pool)) return;
    for (const auto& arena : pool.arenas()) {
      if (const Block* block = arena->bins.largest()) largest = std::max(largest, block->size());
    }
  });
  return largest;
}

// --- one allocation -------------------------------------------------------------------------------------------------

std::optional<DeviceAllocator::Segment> DeviceAllocator::base_allocation(const Block& block, const void* ptr) const {
  const Lock lock(mutex_);
  if (!is_live(block, ptr)) return std::nullopt;
  const Block* head = &block;
  while (!head->prev->is_edge()) head = head->prev;
  const Block* last = &block;
  while (!last->next->is_edge()) last = last->next;
  return Segment{head->address, last->end() - head->address};
}

std::optional<DeviceAllocator::Sizes> DeviceAllocator::sizes(const Block& block, const void* ptr) const {
  const Lock lock(mutex_);
  if (!is_live(block, ptr)) return std::nullopt;
  return Sizes{block.requested_bytes(), block.size()};
}

std::string DeviceAllocator::describe(const void* ptr) const {
  const Lock lock(mutex_);
  const Address address = as_address(ptr);
  const Block* block = heap_.segment_at(address);
  if (block == nullptr) return "";
  while (block->end() <= address) block = block->next;
  if (block->is_unused() || block->is_cached()) return "its memory is free (already freed?)";
  if (block->has(Block::kPending) || block->has(Block::kFreeing))
    return "it was already freed and waits for other streams";
  return formatted("it lies inside the allocation of {} bytes at {:#x}", block->requested_bytes(), block->address);
}

// --- history --------------------------------------------------------------------------------------------------------

void DeviceAllocator::record_history(const HistoryOptions& history) {
  const Lock lock(mutex_);
  history_.configure(history);
  const bool has_contexts = history.enabled && history.contexts != HistoryOptions::Contexts::never;
  recorder_ = has_contexts ? history.recorder : nullptr;
  recorded_contexts_ = has_contexts ? history.contexts : HistoryOptions::Contexts::never;
  set_observed();
  if (has_contexts) set_mode(kContexts, true);
}

// Who watches makes allocations leave the fast path, as those with a context do.
void DeviceAllocator::set_observed() {
  const bool takes_stacks = history_.tells_of_changes();
  const auto least = takes_stacks ? HistoryOptions::Contexts::state : HistoryOptions::Contexts::never;
  contexts_.store(std::max(recorded_contexts_, least), std::memory_order_relaxed);
  takes_stacks_.store(takes_stacks, std::memory_order_relaxed);
  watched_.store(history_.watched(), std::memory_order_relaxed);
  set_mode(kObserved, history_.observes());
  if (!caches_are_open()) drain_caches();  // they would be of no use
}

void DeviceAllocator::add_watcher(std::shared_ptr<Watcher> watcher) {
  const Lock lock(mutex_);
  history_.add_watcher(std::move(watcher));
  set_observed();
}

void DeviceAllocator::remove_watcher(const Watcher* watcher) {
  std::shared_ptr<Watcher> removed;  // and let go of without the lock
  const Lock lock(mutex_);
  removed = history_.remove_watcher(watcher);
  set_observed();
}

void DeviceAllocator::let_guard_tell() {
  const Lock lock(mutex_);
  history_.only_tell();
}

void DeviceAllocator::tell_watchers(Change change, const CallStack& stack) {
  change.device = index_;
  change.time_us = device_->clock_us();
  const Lock lock(mutex_);
  history_.tell(change, stack);
}

bool DeviceAllocator::history_enabled() const {
  const Lock lock(mutex_);
  return history_.enabled();
}

void DeviceAllocator::add_change_tracker(ChangeTracker tracker) {
  CACHALOT_REQUIRE(tracker, "a change tracker must be callable");
  const Lock lock(mutex_);
  history_.add_tracker(std::move(tracker));
  set_mode(kObserved, true);
}

// The user's recorder runs without the lock: it may be slow, or wait for another lock that a holder of ours wants.
Context DeviceAllocator::gather_context(HistoryOptions::Contexts level) const {
  ContextRecorder recorder;
  {
    const Lock lock(mutex_);
    if (contexts_.load(std::memory_order_relaxed) >= level) recorder = recorder_;
  }
  return recorder ? recorder() : nullptr;
}

Change DeviceAllocator::change_of(Change::Action action, const Block& block, const Context& context) const {
  const BlockPool& pool = block.arena->pool;
  const bool of_segment = action == Change::Action::segment_alloc;
  return {.action = action,
          .pool_kind = pool.kind(),
          .address = block.address,
          .bytes = of_segment ? block.size() : block.requested,
          .block_bytes = of_segment ? 0 : block.size(),
          .stream = block.arena->stream.handle,
          .pool = pool.id(),
          .context = context};
}

void DeviceAllocator::observe(Change change) {
  change.device = index_;
  change.time_us = device_->clock_us();
  change.annotation = history_.annotation();
  history_.record(change);
}

// --- snapshot -------------------------------------------------------------------------------------------------------

SegmentSnapshot DeviceAllocator::picture(const Block& head) const {
  using State = BlockSnapshot::State;
  const auto context_of = [this](const Block& block, Context BlockDetail::*which) {
    const BlockDetail* detail = heap_.slab().find_detail(block);
    return detail == nullptr ? nullptr : detail->*which;
  };
  SegmentSnapshot segment;
  segment.device = index_;
  segment.address = head.address;
  segment.stream = head.arena->stream.handle;
  segment.segment_type = head.arena->pool.kind();
  segment.segment_pool_id = head.arena->pool.id();
  segment.is_expandable = pages_ != nullptr && pages_->holds(head.address);
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
  if (is_asleep(head.arena->pool)) {
    segment.asleep_size = pages_->asleep_bytes(segment.address, segment.address + segment.total_size);
  }
  return segment;
}

void DeviceAllocator::snapshot_into(Snapshot& snapshot, PoolId pool, bool include_traces) {
  const Lock lock(mutex_);
  if (include_traces) snapshot.device_traces.push_back(history_.entries());
  const ThreadCaches::Recall hold(caches_.get());
  std::size_t active_bytes = 0;
  for (const auto& [address, head] : heap_.segments()) {
    if (!pool.is_default() && head->arena->pool.id() != pool) continue;
    snapshot.segments.push_back(picture(*head));
    active_bytes += snapshot.segments.back().active_size;
  }
  if ((rare_ & kObserved) != 0) {
    observe({.action = Change::Action::snapshot, .bytes = active_bytes, .pool = pool});
  }
}

// --- soundness ------------------------------------------------------------------------------------------------------

std::string DeviceAllocator::validate() {
  const Lock lock(mutex_);
  const ThreadCaches::Recall hold(caches_.get());
  if (caches_ != nullptr) {
    gather_held();
    if (std::string broken = validate_caches(); !broken.empty()) return broken;
  }
  if (std::string broken = heap_.validate(); !broken.empty()) return broken;
  if (pages_ != nullptr) {
    if (std::string broken = pages_->validate(moving_bytes_); !broken.empty()) return broken;
    if (std::string broken = pages_->validate_idle_pages(pools_of(nullptr)); !broken.empty()) return broken;
    for (const auto& [id, pool] : pools_) {
      if (!is_paged(pool->large)) continue;
      if (std::string broken = pages_->validate_idle_pages(pools_of(pool.get())); !broken.empty()) return broken;
    }
  }
  if (std::string broken = validate_bins(); !broken.empty()) return broken;
  if (std::string broken = validate_sleep(); !broken.empty()) return broken;
  return validate_counters();
}

// Every free block is in the bins of its arena, and nothing else is.
std::string DeviceAllocator::validate_bins() const {
  std::string broken;
  std::size_t binned = 0;
  for_each_pool([&](const BlockPool& pool) {
    for (const auto& arena : pool.arenas()) {
      if (std::string wrong = arena->bins.validate(); !wrong.empty()) broken = wrong;
      arena->bins.for_each([&](const Block& block) {
        ++binned;
        if (block.arena != arena.get()) broken = formatted("block {:#x} is in another arena's bins", block.address);
      });
    }
  });
  std::size_t free = 0;
  for (const auto& [address, head] : heap_.segments()) {
    for (const Block* block = head; !block->is_edge(); block = block->next) free += block->is_free() ? 1 : 0;
  }
  if (broken.empty() && binned != free) broken = formatted("{} blocks are free but {} are in bins", free, binned);
  return broken;
}

// Memory is away only in pools that are asleep, and only of theirs is anything saved.
std::string DeviceAllocator::validate_sleep() const {
  if (pages_ == nullptr) return "";
  for (const auto& entry : pools_) {
    const PrivatePool& pool = *entry.second;
    if (!pool.is_asleep && !handles_of(pool, /*asleep=*/true).empty())
      return formatted("{} is awake, and some of its memory is not", name_of(pool));
    if (!pool.is_asleep && !pool.saved.empty()) return formatted("{} is awake, and has saved bytes", name_of(pool));
    const std::vector<HandleId> handles = pages_->handles_of(pool);
    for (const auto& saved : pool.saved) {
      if (std::find(handles.begin(), handles.end(), saved.first) == handles.end())
        return formatted("{} has saved bytes of handle {}, which is not its own", name_of(pool), saved.first);
    }
  }
  return "";
}

// What is marked as cached and not handed out is in a cache, and nothing else is.
std::string DeviceAllocator::validate_caches() const {
  std::size_t idle = 0;
  for (const auto& [address, head] : heap_.segments()) {
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      idle += block->is_cached() ? 1 : 0;
    }
  }
  return caches_->validate(idle);
}

// The counters say what a walk over the blocks finds.
std::string DeviceAllocator::validate_counters() const {
  DeviceStats walked;
  for (const auto& [address, head] : heap_.segments()) {
    const auto add_to = [&](PoolKind kind, StatArray& stat, std::size_t amount) {
      (kind == PoolKind::small ? stat.small_pool : stat.large_pool).current += as_signed(amount);
      stat.all.current += as_signed(amount);
    };
    const PageRange* range = pages_ == nullptr ? nullptr : pages_->range_of(address);
    const PoolKind reserved_in = range != nullptr ? range->kind : head->arena->pool.kind();
    if (range == nullptr) add_to(reserved_in, walked.segment, 1);
    std::size_t run_bytes = 0;
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      const auto add = [&](StatArray& stat, std::size_t amount) { add_to(block->arena->pool.kind(), stat, amount); };
      run_bytes += block->size();
      if (block->is_live()) {
        add(walked.allocation, 1);
        add(walked.allocated_bytes, block->size());
      }
      if (!block->is_unused() && !block->is_cached()) {
        add(walked.active, 1);
        add(walked.active_bytes, block->size());
        add(walked.requested_bytes, block->requested_bytes());
      } else if (block->is_free() && block->is_split() && !heap_.has_ranges()) {
        add(walked.inactive_split, 1);
        add(walked.inactive_split_bytes, block->size());
      }
    }
    const std::size_t asleep = is_asleep(head->arena->pool) ? pages_->asleep_bytes(address, address + run_bytes) : 0;
    add_to(reserved_in, walked.reserved_bytes, run_bytes - asleep);
  }
  const DeviceStats kept = counters_.stats();
  const auto differs = [](const StatArray& a, const StatArray& b) {
    return a.all.current != b.all.current || a.small_pool.current != b.small_pool.current ||
           a.large_pool.current != b.large_pool.current;
  };
  if (differs(walked.segment, kept.segment)) return "statistic 'segment' differs from the segments there are";
  if (moving_bytes_ == 0 && differs(walked.reserved_bytes, kept.reserved_bytes))
    return "statistic 'reserved_bytes' differs from the segments there are";
  if (differs(walked.allocation, kept.allocation)) return "statistic 'allocation' differs from the blocks there are";
  if (differs(walked.allocated_bytes, kept.allocated_bytes))
    return "statistic 'allocated_bytes' differs from the blocks there are";
  if (differs(walked.active, kept.active)) return "statistic 'active' differs from the blocks there are";
  if (differs(walked.active_bytes, kept.active_bytes))
    return "statistic 'active_bytes' differs from the blocks there are";
  if (differs(walked.requested_bytes, kept.requested_bytes))
    return "statistic 'requested_bytes' differs from the blocks there are";
  if (differs(walked.inactive_split, kept.inactive_split))
    return "statistic 'inactive_split' differs from the blocks there are";
  if (differs(walked.inactive_split_bytes, kept.inactive_split_bytes))
    return "statistic 'inactive_split_bytes' differs from the blocks there are";
  if (held_bytes_ != as_size(kept.reserved_bytes.all.current) + asking_bytes_ + departing_bytes_ + orphan_bytes_)
    return "held bytes differ from statistic 'reserved_bytes'";
  return "";
}

std::size_t DeviceAllocator::metadata_bytes() const {
  const Lock lock(mutex_);
  std::size_t bytes = sizeof(*this) + heap_.metadata_bytes() + frees_.metadata_bytes() + history_.metadata_bytes();
  if (pages_ != nullptr) bytes += pages_->metadata_bytes() + placement_->metadata_bytes();
  if (caches_ != nullptr) bytes += caches_->metadata_bytes();
  for_each_pool([&](const BlockPool& pool) {
    for (const auto& arena : pool.arenas()) bytes += sizeof(Arena) + arena->bins.metadata_bytes();
  });
  return bytes;
}

}  // namespace cachalot
