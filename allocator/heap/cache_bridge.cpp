#include "heap/cache_bridge.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/bytes.h"

CACHALOT_BEGIN

namespace {

// The part of the device's held memory that all caches and depots may hold: too little to be noticed. (With a 1024th
// frag_toy needed 0.47 % more, over 16 sizes of its blocks; 0.22 % with this.)
constexpr std::size_t kPartCached = 4096;
// Nothing is cached if less than this part of the memory is left: each block should lie where it fits best. Nor while a
// thread's small blocks of the page heap are to lie between large ones, since their own pages are used up.
constexpr std::size_t kPartLeft = 32;

}  // namespace

// --- the existence of caches ----------------------------------------------------------------------------------------------

void CacheBridge::want_caches(bool wanted, const Held& held) {
  state_.wants_caches = wanted && has_asymmetric_fences();
  if (state_.wants_caches && state_.caches == nullptr) {
    device_bytes_ = state_.device->properties().total_bytes;
    ThreadCaches::Heap heap = {[this](Block& block, const Held& token) {
                                 holds(token);
                                 free_cached(block, token);
                               },
                               [this](const Held& token) {
                                 holds(token);
                                 update_sums(token);
                               }};
    state_.caches = std::make_unique<ThreadCaches>(state_.mutex, std::move(heap));
    state_.set_mode(HeapState::kCaching, true, held);
  }
  state_.open_or_close_caches(held);
  if (!state_.caches_are_open()) state_.drain_caches(held);
}

void CacheBridge::drain() {
  const DeviceLock lock(state_.mutex);
  state_.drain_caches(lock);
}

bool CacheBridge::drain_or_grow(const Held& held) {
  if (state_.caches == nullptr) return true;
  if (state_.caches->should_grow_instead()) return false;
  state_.drain_caches(held);
  return true;
}

// --- blocks ---------------------------------------------------------------------------------------------------------------

StreamCache* CacheBridge::cache_of(const KnownStream& stream, const Held& held) {
  return state_.caches_are_open() ? state_.caches->of_this_thread(stream.key, held) : nullptr;
}

void CacheBridge::note_small_is_used_up(bool used_up, const Held& /*held*/) { small_is_used_up_ = used_up; }

Block& CacheBridge::begin_lease(StreamCache& cache, Block& block, Request request, const Held& held) {
  std::uint16_t* const word = cache.words.allocate();
  const bool split = state_.splits(block, request, held);
  const InactiveSplit change = state_.blocks.allocate(block, request.rounded, request.bytes, split);
  state_.counters.inactive_split(PoolKind::small, change.blocks, change.bytes);
  block.size_and_flags = block.size() | Block::kCached;
  const auto size_class = static_cast<std::uint16_t>(SizeClass::of(block.size()));
  block.lease = {word, size_class, SizeClass::first(size_class),
                 static_cast<std::uint8_t>(SizeClass::most(size_class))};
  return block;
}

void CacheBridge::refill(StreamCache& cache, Request request, const Held& held) {
  std::uint32_t more = state_.caches->more_blocks(cache, SizeClass::of(request.rounded));
  try {
    for (; more != 0; --more) {
      Block* block = state_.find_free(request, held);
      if (block == nullptr) return;
      state_.caches->add(cache, begin_lease(cache, *block, request, held));
    }
  } catch (const std::bad_alloc&) {  // there is no host memory for another block: fewer will do
  }
}

void CacheBridge::detach(Block& block, const Held& held) {
  update_sums(held);
  if (block.has(Block::kCached)) end_lease(block, held);
}

// From now on as any other that the heap has allocated: the sums have counted it in, the statistics will count it out.
void CacheBridge::end_lease(Block& block, const Held& /*held*/) {
  block.requested = block.lent_bytes() & Block::kRequestedBits;
  LentWords::free(block.lease.word);
  block.size_and_flags = block.size() | Block::kAllocated;
  block.uses = {nullptr, 0};
}

void CacheBridge::free_cached(Block& block, const Held& /*held*/) {
  LentWords::free(block.lease.word);
  const InactiveSplit change = state_.blocks.put_back(block);
  state_.counters.inactive_split(PoolKind::small, change.blocks, change.bytes);
}

void CacheBridge::end_stream(StreamKey stream, const Held& held) {
  if (state_.caches != nullptr) state_.caches->end_stream(stream, held);
}

void CacheBridge::end_streams_but(const Set<StreamKey>& kept, const Held& held) {
  if (state_.caches != nullptr) state_.caches->end_streams_but(kept, held);
}

// --- sums -----------------------------------------------------------------------------------------------------------------

// Updates the budget and the sums. Threads that run meanwhile are counted in part.
void CacheBridge::update_sums(const Held& held) {
  const std::size_t held_bytes = state_.ledger.held_bytes(held);
  const std::size_t most = std::min(state_.ledger.limit(held), device_bytes_);
  const bool is_scarce = (small_is_used_up_ && state_.caches->threads() == 1) || held_bytes > most - most / kPartLeft;
  state_.caches->set_budget(is_scarce ? 0 : held_bytes / kPartCached);
  state_.caches->for_each([&](ThreadCache& cache) {
    holds(held);
    if (cache.sums.has_news()) state_.counters.gathered(PoolKind::small, cache.sums.gather());
  });
}

void CacheBridge::gather(const Held& held) {
  if (state_.caches == nullptr) return;
  const ThreadCaches::Recall hold(state_.caches.get());
  gather_recalled(held);
}

void CacheBridge::gather_recalled(const Held& held) {
  state_.caches->for_each([&](ThreadCache& cache) {
    holds(held);
    state_.counters.gathered(PoolKind::small, cache.sums.gather());
  });
}

CACHALOT_END
