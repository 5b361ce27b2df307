#include "caches/thread_caches.h"
#include "base/format.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

CACHALOT_BEGIN

ThreadCaches::Recall::Recall(const ThreadCaches* caches, Which which) : caches_(caches) {
  if (caches_ == nullptr) return;
  const ThreadCache* const mine = caches_->of_this_thread();
  bool any = false;
  caches_->for_each([&](ThreadCache& cache) {
    if (&cache == mine || (which == Which::of_others_with_blocks && cache.cached_bytes() == 0)) return;
    cache.recall();
    any = true;
  });
  if (!any) return;
  heavy_fence();
  caches_->for_each([](const ThreadCache& cache) {
    if (cache.is_recalled()) cache.wait_until_left();
  });
}

// Its scope is inside that of the lock.
ThreadCaches::Recall::~Recall() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  if (caches_ == nullptr) return;
  caches_->for_each([](ThreadCache& cache) {
    if (cache.is_recalled()) cache.end_recall();
  });
}

ThreadCaches::ThreadCaches(Mutex& mutex, Heap heap)
    : id_(Parts::add_owner(*this)), mutex_(mutex), heap_(std::move(heap)) {}

void ThreadCaches::forget_threads() { Parts::remove_owner(id_); }

// --- malloc and free, off the fast path -----------------------------------------------------------------------------

void* ThreadCaches::allocate(std::size_t bytes, StreamKey stream) {
  if (!HotCache::is_of(id_, stream) && !switch_to(stream, /*may_make=*/false)) return nullptr;
  StreamCache& cache = HotCache::get();
  if (!cache.owner.enter()) return nullptr;
  const bool has_some = next_batch(cache, SizeClass::of(bytes));
  cache.owner.leave();
  return has_some ? HotCache::allocate(bytes, stream) : nullptr;
}

bool ThreadCaches::deallocate(Block& block, const void* ptr) {
  if (!block.is_lent(as_address(ptr)) || block.arena->has_ended.load(std::memory_order_relaxed)) return false;
  const StreamKey stream = block.arena->stream.key;
  if (!HotCache::is_of(id_, stream) && !switch_to(stream, /*may_make=*/true)) return false;
  if (HotCache::deallocate(block, ptr)) return true;
  make_room(HotCache::get(), as_signed(block.size()));
  return HotCache::deallocate(block, ptr);
}

// --- the choice of a cache --------------------------------------------------------------------------------------------

ThreadCache* ThreadCaches::find_registered() const { return Parts::has_ended() ? nullptr : Parts::find(id_); }

// A malloc that finds none goes to the heap, which makes it; a free has nothing else to do there.
bool ThreadCaches::switch_to(StreamKey stream, bool may_make) {
  const ThreadCache* mine = of_this_thread();
  StreamCache* cache = mine == nullptr ? nullptr : mine->find(stream);
  if (cache == nullptr && may_make) {
    const DeviceLock lock(mutex_);
    cache = of_this_thread(stream, lock);
  }
  if (cache == nullptr) return false;
  HotCache::set(id_, *cache);
  return true;
}

StreamCache* ThreadCaches::of_this_thread(StreamKey stream, const Held& held) noexcept {
  if (Parts::has_ended()) return nullptr;
  try {
    return &make_for_this_thread(stream, held);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

StreamCache& ThreadCaches::make_for_this_thread(StreamKey stream, const Held& held) {
  ThreadCache* mine = of_this_thread();
  if (mine == nullptr) mine = &register_thread(held);
  if (mine->has_ended_streams()) {
    HotCache::forget();
    mine->forget_ended_streams(putting_back(held));
  }
  if (StreamCache* cache = mine->find(stream)) return *cache;
  auto depot = depots_.find(stream);
  if (depot == depots_.end()) depot = depots_.emplace(stream, std::make_unique<Depot>(depot_budget_)).first;
  return mine->add(stream, *depot->second);
}

void ThreadCaches::end_stream(StreamKey stream, const Held& held) {
  std::erase_if(ended_, [](const auto& depot) { return depot->all_words_are_free(); });
  ended_.reserve(ended_.size() + 1);
  auto depot = depots_.extract(stream);
  if (depot.empty()) return;
  {
    const Recall recall(this);
    for (const auto& cache : threads_) {
      StreamCache* const ending = cache->find(stream);
      if (ending == nullptr) continue;
      cache->empty(*ending, putting_back(held));
      cache->end(*ending);
    }
    depot.mapped()->drain(putting_back(held));
  }
  ended_.push_back(std::move(depot.mapped()));
}

ThreadCache& ThreadCaches::register_thread(const Held& held) {
  unused_.reserve(threads_.size() + 1);  // so that a thread can end without asking for memory
  if (unused_.empty()) unused_.push_back(threads_.emplace_back(std::make_unique<ThreadCache>()).get());
  ThreadCache& cache = *unused_.back();
  Parts::add(id_, cache);
  unused_.pop_back();
  share_out(held);
  return cache;
}

// The thread ends. Its cache, and what it has counted, are kept for another.
void ThreadCaches::retire(ThreadCache& cache) {
  const DeviceLock lock(mutex_);
  heap_.visited(lock);
  cache.empty(putting_back(lock));
  unused_.push_back(&cache);
  set_limits();
}

void ThreadCaches::end_streams_but(const Set<StreamKey>& kept, const Held& held) {
  Vector<StreamKey> ending;
  for (const auto& [stream, depot] : depots_) {
    if (!stream.is_immortal() && !kept.contains(stream)) ending.push_back(stream);
  }
  for (const StreamKey stream : ending) end_stream(stream, held);
}

void ThreadCaches::change_budget(std::size_t bytes) {
  budget_bytes_ = bytes;
  drains_in_a_row_ = 0;  // the heap has grown, or there is less of it
  set_limits();
}

// A lone thread has no other to pass blocks on to through a depot.
void ThreadCaches::set_limits() {
  const std::int64_t half = as_signed(budget_bytes_ / 2);
  thread_limit_ = half / std::max<std::int64_t>(threads(), 1);
  thread_limit_ = half == 0 ? 0 : std::clamp(thread_limit_, kLeastThreadBytes, kMostThreadBytes);
  const std::int64_t depots = half == 0 || threads() < 2 ? 0 : std::max(half, threads() * kLeastDepotBytes);
  depot_budget_.limit_bytes.store(depots, std::memory_order_relaxed);
}

void ThreadCaches::share_out(const Held& held) {
  const Recall recall(this);
  set_limits();
  for (const auto& cache : threads_) {
    cache->set_limit(thread_limit_);
    if (cache->room() < 0) cache->evict(putting_back(held));
  }
}

// --- a cache with an empty or full stack ------------------------------------------------------------------------------

bool ThreadCaches::must_gather(const ThreadCache& cache) {
  return std::abs(cache.sums.ungathered_bytes()) > kMostUngatheredBytes;
}

// Within enter and leave. Returns false if the heap must serve.
bool ThreadCaches::next_batch(StreamCache& cache, std::size_t size_class) {
  if (cache.count(size_class) != 0) return true;
  if (must_gather(cache.owner) || cache.depot == nullptr || !cache.depot->take(size_class, cache.bottom(size_class)))
    return false;
  cache.counts[size_class] = static_cast<std::uint8_t>(SizeClass::batch(size_class));
  cache.owner.supplied(SizeClass::batch_bytes(size_class));
  return true;
}

// Within enter and leave, or with the mutex held. Returns false if the heap must take some, or gather.
bool ThreadCaches::make_room_in_cache(StreamCache& cache, std::int64_t bytes) {
  ThreadCache& mine = cache.owner;
  if (must_gather(mine)) return false;
  if (mine.is_closed()) return true;
  if (cache.front != nullptr) {
    const std::size_t size_class = cache.front->lease.size_class;
    const bool is_full = cache.is_full(size_class);
    const bool has_batch = cache.count(size_class) >= SizeClass::batch(size_class);
    if (has_batch && (is_full || !mine.has_room_for(bytes)) && cache.depot != nullptr &&
        cache.depot->put(size_class, cache.bottom(size_class)))
      drop_batch(cache, size_class);
    else if (is_full)
      return false;
  }
  return mine.has_room_for(bytes);
}

void ThreadCaches::drop_batch(StreamCache& cache, std::size_t size_class) {
  cache.drop_batch(size_class);
  cache.owner.supplied(-SizeClass::batch_bytes(size_class));
}

// For one more block, of `bytes`, unless the limit is too small: the one in front must fit into its stack.
void ThreadCaches::make_room(StreamCache& cache, std::int64_t bytes) {
  ThreadCache& mine = cache.owner;
  if (mine.enter()) {
    const bool has_room = make_room_in_cache(cache, bytes);
    mine.leave();
    if (has_room) return;
  }
  const DeviceLock lock(mutex_);
  heap_.visited(lock);
  if (make_room_in_cache(cache, bytes)) return;
  if (cache.front != nullptr && cache.is_full(cache.front->lease.size_class)) {
    const std::size_t size_class = cache.front->lease.size_class;
    std::for_each_n(cache.bottom(size_class), SizeClass::batch(size_class),
                    [&](Block* b) { heap_.put_back(*b, lock); });
    drop_batch(cache, size_class);
  }
  if (!mine.has_room_for(bytes)) mine.evict(putting_back(lock));
}

// --- with the mutex held ----------------------------------------------------------------------------------------------

// None the first time, then twice as many each time, so that a size that is rare stays so in the cache. The stack is not
// empty where callbacks have freed meanwhile: then it has enough.
std::uint32_t ThreadCaches::more_blocks(StreamCache& cache, std::size_t size_class) const {
  if (cache.count(size_class) != 0) return 0;
  const std::int64_t fit = cache.owner.room() / as_signed(SizeClass::bytes(size_class));
  std::uint8_t& last = cache.refills[size_class];
  const std::uint32_t blocks = last;
  last = static_cast<std::uint8_t>(std::min(2u * last + 1u, SizeClass::batch(size_class) - 1));
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(fit, 0, blocks));
}

void ThreadCaches::add(StreamCache& cache, Block& block) {
  block.mark_cached();
  cache.push(block);
  cache.owner.supplied(as_signed(block.size()));
}

void ThreadCaches::hand_out(StreamCache& cache, Block& block, std::size_t bytes) {
  block.mark_lent(bytes);
  cache.owner.supplied(as_signed(block.size()));
  cache.owner.sums.allocated(as_signed(block.size()), as_signed(bytes));
}

bool ThreadCaches::return_own(StreamCache& cache, const Held& held) {
  if (cache.owner.cached_bytes() == 0) return false;
  cache.owner.empty(putting_back(held));
  return true;
}

bool ThreadCaches::drain(const Held& held) {
  bool any = depot_budget_.used_bytes.load(std::memory_order_relaxed) != 0;
  for (const auto& cache : threads_) any |= cache->cached_bytes() != 0;
  if (!any) return false;  // a block that comes just now may be overlooked
  const Recall recall(this, Which::of_others_with_blocks);
  const ThreadCache* const mine = of_this_thread();
  for (const auto& cache : threads_) {
    if (cache->is_recalled() || cache.get() == mine) cache->empty(putting_back(held));
  }
  for (const auto& entry : depots_) {
    entry.second->drain(putting_back(held));
  }
  return true;
}

// A thread by itself passes nothing on.
bool ThreadCaches::should_grow_instead() {
  if (threads() < 2) return false;
  const bool soon = visits_ - last_drain_ < kVisitsBetweenDrains;
  last_drain_ = visits_;
  drains_in_a_row_ = soon ? drains_in_a_row_ + 1 : 1;
  return drains_in_a_row_ > kMostDrainsInARow;
}

std::string ThreadCaches::validate(std::size_t cached_blocks) const {
  std::size_t blocks = 0;
  for (const auto& cache : threads_) {
    if (std::string broken = cache->validate(); !broken.empty()) return broken;
    blocks += cache->cached_blocks();
  }
  std::int64_t depot_bytes = 0;
  for (const auto& entry : depots_) {
    if (std::string broken = entry.second->validate(entry.first); !broken.empty()) return broken;
    blocks += entry.second->blocks();
    depot_bytes += entry.second->bytes();
  }
  if (depot_bytes != depot_budget_.used_bytes.load(std::memory_order_relaxed))
    return "the depots' bytes are miscounted";
  if (blocks != cached_blocks)
    return formatted("{} blocks are marked as cached but {} are in caches", cached_blocks, blocks);
  return "";
}

std::size_t ThreadCaches::metadata_bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const auto& entry : depots_) bytes += entry.second->metadata_bytes();
  for (const auto& depot : ended_) bytes += depot->metadata_bytes();
  for (const auto& cache : threads_) bytes += cache->metadata_bytes();
  return bytes;
}

CACHALOT_END
