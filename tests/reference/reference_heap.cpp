#include "tests/reference/reference_heap.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "tests/reference/accounting.h"

namespace cachalot {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSmall = kMiB;  // rounded sizes up to this are small
constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kOwnSegment = 10 * kMiB;  // rounded sizes from this on get a segment of their own …
constexpr std::size_t kOwnSegmentStep =
    2 * kMiB;  // … in such steps; also the unit in which the device hands out memory

std::size_t up_to_multiple(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

ReferenceHeap::ReferenceHeap(std::size_t device_bytes, const Options& options)
    : device_bytes_(device_bytes), options_(options) {
  create_or_retain_pool({});
  if (options.max_split_size != Options::kUnlimited)
    stats_.max_split_size = static_cast<std::int64_t>(options.max_split_size);
  set_memory_fraction(options.per_process_memory_fraction);
}

void ReferenceHeap::set_memory_fraction(double fraction) {
  limit_.reset();
  if (fraction < 1) limit_ = static_cast<std::size_t>(std::floor(fraction * static_cast<double>(device_bytes_)));
}

// ---- Statistics

void ReferenceHeap::change(StatArray& stat, const BlockPool& pool, std::int64_t amount) {
  adjust(stat, pool.kind, amount);
}
void ReferenceHeap::up(StatArray& stat, const BlockPool& pool, std::size_t amount) {
  change(stat, pool, static_cast<std::int64_t>(amount));
}
void ReferenceHeap::down(StatArray& stat, const BlockPool& pool, std::size_t amount) {
  change(stat, pool, -static_cast<std::int64_t>(amount));
}

void ReferenceHeap::reset_peak_stats() {
  for_each_stat(stats_, [](Stat& stat) { stat.peak = stat.current; });
}

void ReferenceHeap::reset_accumulated_stats() {
  for_each_stat(stats_, [](Stat& stat) { stat.allocated = stat.freed = 0; });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

// ---- Sizes

std::size_t ReferenceHeap::round_size(std::size_t bytes) const {
  if (bytes < 512) return 512;
  const int log = static_cast<int>(std::bit_width(bytes)) - 1;
  const std::size_t divisions =
      options_.roundup_power2_divisions[static_cast<std::size_t>(std::clamp(log - 20, 0, 15))];
  if (divisions <= 1 || bytes <= 512 * divisions) return up_to_multiple(bytes, 512);
  if (std::has_single_bit(bytes)) return bytes;
  const std::size_t step = (std::size_t{1} << log) / divisions;
  return step == 0 ? std::bit_ceil(bytes) : up_to_multiple(bytes, step);
}

std::size_t ReferenceHeap::segment_size(std::size_t rounded) const {
  if (rounded <= kSmall) return kSmallSegment;
  if (rounded < kOwnSegment) return options_.large_segment_size;
  return up_to_multiple(rounded, kOwnSegmentStep);
}

ReferenceHeap::Request ReferenceHeap::request(std::size_t bytes, Stream stream) {
  const std::size_t size = round_size(bytes);
  const Redirection* redirection = redirection_of(stream);
  Pool& pool = pools_.at(redirection ? redirection->pool : PoolId{});
  return {bytes, size, segment_size(size), stream, &pool.of(size <= kSmall ? PoolKind::small : PoolKind::large)};
}

// ---- Allocation

std::optional<ReferenceHeap::Place> ReferenceHeap::allocate(Name name, std::size_t bytes, Stream stream) {
  if (!capturing() && !redirection_of(stream)) reclaim_finished();
  Request wanted = request(bytes, stream);
  Block* block = find_free(wanted);
  if (!block && free_memory_callback_ && free_memory_callback_()) block = find_free(wanted);
  if (!block) {
    if (!capturing()) collect_garbage();
    block = grow(wanted);
  }
  if (!block) block = find_in_use_on_oom_pools(wanted);
  if (!block && !capturing() && release_oversize(wanted)) block = grow(wanted);
  while (!block && !capturing() && synchronize_next(wanted.pool->owner)) block = find_free(wanted, /*ticks=*/false);
  if (!block && !capturing()) {
    synchronize_pending();
    block = find_free(wanted, /*ticks=*/false);  // PyTorch forgets this: a block that waited may fit now
  }
  if (!block && !capturing()) {
    release_cached();
    ++stats_.num_alloc_retries;
    block = grow(wanted);
  }
  if (!block) {
    ++stats_.num_ooms;
    return std::nullopt;
  }
  take(*block, wanted);
  live_[name] = block;
  const Segment& segment = *block->segment;
  return Place{segment.ordinal, segment.size, block->address - segment.address, block->size};
}

// Takes the best fit out of the free set. On failure nothing but the clock has changed.
ReferenceHeap::Block* ReferenceHeap::find_free(Request& wanted, bool ticks) {
  BlockPool& pool = *wanted.pool;
  if (ticks && collects_garbage()) ++pool.searches;
  const auto found = pool.free.lower_bound(FreeKey{wanted.stream, wanted.size, 0});
  if (found == pool.free.end() || found->stream != wanted.stream) return nullptr;
  const bool is_oversize = wanted.size >= options_.max_split_size;
  if (!is_oversize && found->size >= options_.max_split_size) return nullptr;
  if (is_oversize && found->size >= wanted.size + options_.max_non_split_rounding) return nullptr;
  Block& block = block_at(*found);
  pool.free.erase(found);
  return &block;
}

ReferenceHeap::Block* ReferenceHeap::find_in_use_on_oom_pools(Request& wanted) {
  if (!wanted.pool->owner->id.is_default()) return nullptr;
  for (auto& [id, pool] : pools_) {
    if (!pool.use_on_oom) continue;
    Request there = wanted;
    there.pool = &pool.of(wanted.pool->kind);
    if (Block* block = find_free(there)) {
      wanted = there;
      return block;
    }
  }
  return nullptr;
}

ReferenceHeap::Block* ReferenceHeap::grow(const Request& wanted) {
  const std::size_t bytes = wanted.segment_size;
  const std::size_t units = up_to_multiple(bytes, kOwnSegmentStep);
  if (limit_ && reserved_bytes_ + bytes > *limit_) return nullptr;
  if (device_used_bytes_ + units > device_bytes_) return nullptr;
  device_used_bytes_ += units;
  reserved_bytes_ += bytes;
  const Address address = next_address_;
  next_address_ += units;
  Segment& segment = segments_[address] = {next_ordinal_++, address, bytes, wanted.stream, wanted.pool};
  ++wanted.pool->owner->segments;
  up(stats_.segment, *wanted.pool, 1);
  up(stats_.reserved_bytes, *wanted.pool, bytes);
  if (bytes >= options_.max_split_size) adjust(stats_.oversize_segments, 1);
  ++stats_.num_device_alloc;
  return &(blocks_[address] = Block{address, bytes, &segment});
}

bool ReferenceHeap::may_split(const Block& block, const Request& wanted) const {
  const std::size_t remaining = block.size - wanted.size;
  if (wanted.pool->owner->no_split) return false;
  if (wanted.pool->kind == PoolKind::small) return remaining >= 512;
  return wanted.size < options_.max_split_size && remaining > kSmall;
}

// The low part is handed out, the high part stays free.
void ReferenceHeap::take(Block& block, const Request& wanted) {
  BlockPool& pool = *wanted.pool;
  const bool was_split = block.is_split();
  if (may_split(block, wanted)) {
    const Address rest_address = block.address + wanted.size;
    Block& rest = blocks_[rest_address] = Block{rest_address, block.size - wanted.size, block.segment};
    block.size = wanted.size;
    insert_free(rest);
    if (was_split) {
      down(stats_.inactive_split_bytes, pool, block.size);
    } else {
      up(stats_.inactive_split, pool, 1);
      up(stats_.inactive_split_bytes, pool, rest.size);
    }
  } else if (was_split) {
    down(stats_.inactive_split, pool, 1);
    down(stats_.inactive_split_bytes, pool, block.size);
  }
  block.state = State::allocated;
  block.requested = wanted.requested;
  up(stats_.allocation, pool, 1);
  up(stats_.allocated_bytes, pool, block.size);
  up(stats_.active, pool, 1);
  up(stats_.active_bytes, pool, block.size);
  up(stats_.requested_bytes, pool, block.requested);
  if (block.size >= options_.max_split_size) adjust(stats_.oversize_allocations, 1);
}

// ---- Free

void ReferenceHeap::record_stream(Name name, Stream stream) {
  Block& block = *live_.at(name);
  if (stream != block.segment->stream) block.used_on.insert(stream);
}

void ReferenceHeap::deallocate(Name name) {
  Block& block = *live_.at(name);
  live_.erase(name);
  BlockPool& pool = *block.segment->pool;
  down(stats_.allocation, pool, 1);
  down(stats_.allocated_bytes, pool, block.size);
  if (block.size >= options_.max_split_size) adjust(stats_.oversize_allocations, -1);
  if (block.used_on.empty()) return free_block(block);
  block.state = State::pending;
  if (capturing()) return deferred_.push_back(&block);
  wait_for_uses(block);
}

void ReferenceHeap::wait_for_uses(Block& block) {
  for (Stream stream : block.used_on) {
    auto queue =
        std::find_if(pending_.begin(), pending_.end(), [&](const auto& entry) { return entry.first == stream; });
    if (queue == pending_.end()) queue = pending_.insert(queue, {stream, {}});
    queue->second.push_back({work_ends_ns_[stream], &block});
    ++block.events;
  }
  block.used_on.clear();
}

// Waits for deferred frees. Their order is not specified (PyTorch's is a hash table's): newest first here.
void ReferenceHeap::wait_for_deferred() {
  for (; !deferred_.empty(); deferred_.pop_back()) wait_for_uses(*deferred_.back());
}

void ReferenceHeap::free_block(Block& block) {
  BlockPool& pool = *block.segment->pool;
  down(stats_.active, pool, 1);
  down(stats_.active_bytes, pool, block.size);
  down(stats_.requested_bytes, pool, block.requested);
  std::int64_t split_blocks = 0;
  std::int64_t split_bytes = 0;
  const auto subsumed = [&](Block& neighbour) {
    erase_free(neighbour);
    --split_blocks;
    split_bytes -= static_cast<std::int64_t>(neighbour.size);
    return neighbour.size;
  };
  auto here = blocks_.find(block.address);
  if (block.address != block.segment->address) {
    const auto previous = std::prev(here);
    if (previous->second.state == State::free) {
      const std::size_t size = subsumed(previous->second);
      previous->second.size = size + block.size;
      blocks_.erase(here);
      here = previous;
    }
  }
  Block& merged = here->second;
  if (const auto next = std::next(here);
      merged.address + merged.size != merged.segment->address + merged.segment->size &&
      next->second.state == State::free) {
    merged.size += subsumed(next->second);
    blocks_.erase(next);
  }
  merged.state = State::free;
  insert_free(merged);
  if (merged.is_split()) {
    ++split_blocks;
    split_bytes += static_cast<std::int64_t>(merged.size);
  }
  change(stats_.inactive_split, pool, split_blocks);
  change(stats_.inactive_split_bytes, pool, split_bytes);
}

void ReferenceHeap::insert_free(Block& block) {
  BlockPool& pool = *block.segment->pool;
  block.freed_at_search = pool.searches;
  pool.free.insert({block.segment->stream, block.size, block.address});
}
void ReferenceHeap::erase_free(Block& block) {
  block.segment->pool->free.erase({block.segment->stream, block.size, block.address});
}

// ---- Streams and time

void ReferenceHeap::launch(Stream stream, std::int64_t duration_ns) {
  std::int64_t& end = work_ends_ns_[stream];
  end = std::max(end, now_ns_) + duration_ns;
}

// A stream's events finish in their order: the first that has not hides those behind it.
void ReferenceHeap::reclaim_finished() {
  wait_for_deferred();
  for (auto& [stream, queue] : pending_) {
    while (!queue.empty() && queue.front().done_at_ns <= now_ns_) {
      Block& block = *queue.front().block;
      queue.pop_front();
      if (--block.events == 0) free_block(block);
    }
  }
}

void ReferenceHeap::synchronize_pending(const Pool* only) {
  ++stats_.num_sync_all_streams;
  wait_for_deferred();
  for (auto& [stream, queue] : pending_) {
    std::deque<Pending> others;
    for (const Pending& pending : queue) {
      if (only && pending.block->segment->pool->owner != only) {
        others.push_back(pending);
        continue;
      }
      now_ns_ = std::max(now_ns_, pending.done_at_ns);
      if (--pending.block->events == 0) free_block(*pending.block);
    }
    queue = others;
  }
}

// PyTorch waits for all of them at once.
bool ReferenceHeap::synchronize_next(const Pool* owner) {
  wait_for_deferred();
  std::deque<Pending>* first = nullptr;
  for (auto& [stream, queue] : pending_) {
    const auto is_owners = [&](const Pending& pending) { return pending.block->segment->pool->owner == owner; };
    if (std::none_of(queue.begin(), queue.end(), is_owners)) continue;
    if (!first || std::max(now_ns_, queue.front().done_at_ns) < std::max(now_ns_, first->front().done_at_ns))
      first = &queue;
  }
  if (!first) return false;
  const Pending done = first->front();
  first->pop_front();
  now_ns_ = std::max(now_ns_, done.done_at_ns);
  if (--done.block->events == 0) free_block(*done.block);
  return true;
}

// ---- Giving back

void ReferenceHeap::release_segment(Block& block) {
  for (const auto& [stream, end] : work_ends_ns_) now_ns_ = std::max(now_ns_, end);  // cudaFree waits for the device
  Segment& segment = *block.segment;
  BlockPool& pool = *segment.pool;
  erase_free(block);
  reserved_bytes_ -= segment.size;
  device_used_bytes_ -= up_to_multiple(segment.size, kOwnSegmentStep);
  --pool.owner->segments;
  down(stats_.segment, pool, 1);
  down(stats_.reserved_bytes, pool, segment.size);
  if (segment.size >= options_.max_split_size) adjust(stats_.oversize_segments, -1);
  ++stats_.num_device_free;
  const Address address = segment.address;
  blocks_.erase(address);
  segments_.erase(address);
}

void ReferenceHeap::release_unsplit(BlockPool& pool) {
  const std::set<FreeKey> all = pool.free;
  for (const FreeKey& key : all) {
    if (!block_at(key).is_split()) release_segment(block_at(key));
  }
}

void ReferenceHeap::release_cached() {
  release_unsplit(pools_.at({}).large);
  release_unsplit(pools_.at({}).small);
  release_released_pools();
}

void ReferenceHeap::release_released_pools() {
  for (auto it = pools_.begin(); it != pools_.end();) {
    Pool& pool = (it++)->second;
    if (pool.users == 0) release_released_pool(pool);
  }
}

void ReferenceHeap::release_released_pool(Pool& pool) {
  release_unsplit(pool.small);
  release_unsplit(pool.large);
  if (pool.segments == 0) pools_.erase(PoolId{pool.id});
}

void ReferenceHeap::empty_cache() {
  if (capturing()) return;
  if (!redirections_.empty()) return release_released_pools();
  synchronize_pending();
  release_cached();
}

void ReferenceHeap::empty_cache(PoolId id) {
  const auto found = pools_.find(id);
  if (found == pools_.end() || found->second.users != 0 || capturing()) return;
  synchronize_pending(&found->second);
  release_released_pool(found->second);
}

// Whole free large segments go, the oldest first, in passes, until the memory held is down to the threshold.
void ReferenceHeap::collect_garbage() {
  if (!collects_garbage()) return;
  const auto threshold =
      static_cast<std::size_t>(std::floor(options_.garbage_collection_threshold * static_cast<double>(*limit_)));
  if (reserved_bytes_ <= threshold) return;
  const std::size_t target = reserved_bytes_ - threshold;
  BlockPool& pool = pools_.at({}).large;
  std::vector<FreeKey> candidates;
  for (const FreeKey& key : pool.free) {
    if (!block_at(key).is_split()) candidates.push_back(key);
  }
  const auto age = [&](const FreeKey& key) {
    return static_cast<double>(pool.searches - block_at(key).freed_at_search);
  };
  std::size_t reclaimed = 0;
  while (reclaimed < target && !candidates.empty()) {
    double mean = 0;
    for (const FreeKey& key : candidates) mean += age(key);
    mean /= static_cast<double>(candidates.size());
    std::vector<FreeKey> kept;
    for (const FreeKey& key : candidates) {
      if (age(key) >= mean) {
        reclaimed += key.size;
        release_segment(block_at(key));
      } else {
        kept.push_back(key);
      }
    }
    candidates = kept;
  }
}

// The best fit, else the largest oversize blocks until they are enough. Only whole segments can go: a best fit that is
// part of a split one (max_split_size was changed since; PyTorch fails there) is passed over for the largest ones.
bool ReferenceHeap::release_oversize(const Request& wanted) {
  if (options_.max_split_size == Options::kUnlimited) return false;
  const std::size_t enough = std::max(wanted.size, options_.max_split_size);
  const auto best = wanted.pool->free.lower_bound(FreeKey{wanted.stream, enough, 0});
  if (best != wanted.pool->free.end() && best->stream == wanted.stream && !block_at(*best).is_split()) {
    release_segment(block_at(*best));
    return true;
  }
  std::vector<FreeKey> oversize;  // of this stream, smallest first
  for (const FreeKey& key : wanted.pool->free) {
    if (key.stream == wanted.stream && key.size >= options_.max_split_size && !block_at(key).is_split())
      oversize.push_back(key);
  }
  std::size_t released = 0;
  while (released < enough && !oversize.empty()) {
    released += oversize.back().size;
    release_segment(block_at(oversize.back()));
    oversize.pop_back();
  }
  return released >= enough;
}

// ---- Private pools

void ReferenceHeap::create_or_retain_pool(PoolId id) {
  Pool& pool = pools_[id];
  pool.id = id;
  ++pool.users;
}

void ReferenceHeap::begin_allocate_to_pool(PoolId id) {
  create_or_retain_pool(id);
  redirections_.push_back({id});
}

void ReferenceHeap::begin_capture(PoolId id, Stream stream) {
  create_or_retain_pool(id);
  redirections_.push_back({id, stream});
}

void ReferenceHeap::end_allocate_to_pool(PoolId id) {
  std::erase_if(redirections_, [&](const Redirection& each) { return each.pool == id; });
}

// The one begun last that applies.
const ReferenceHeap::Redirection* ReferenceHeap::redirection_of(Stream stream) const {
  const auto applies = [&](const Redirection& each) { return !each.captured || *each.captured == stream; };
  const auto found = std::find_if(redirections_.rbegin(), redirections_.rend(), applies);
  return found == redirections_.rend() ? nullptr : &*found;
}

bool ReferenceHeap::allocates_to(PoolId id) const {
  return std::any_of(redirections_.begin(), redirections_.end(),
                     [&](const Redirection& each) { return each.pool == id; });
}

bool ReferenceHeap::captures(Stream stream) const {
  return std::any_of(redirections_.begin(), redirections_.end(),
                     [&](const Redirection& each) { return each.captured && *each.captured == stream; });
}

bool ReferenceHeap::capturing() const {
  return std::any_of(redirections_.begin(), redirections_.end(),
                     [](const Redirection& each) { return each.captured.has_value(); });
}

void ReferenceHeap::release_pool(PoolId id) { --pools_.at(id).users; }

std::size_t ReferenceHeap::largest_free() const {
  std::size_t largest = 0;
  for (const auto& [id, pool] : pools_) {
    for (const BlockPool* blocks : {&pool.small, &pool.large}) {
      for (const FreeKey& key : blocks->free) largest = std::max(largest, key.size);
    }
  }
  return largest;
}

}  // namespace cachalot
