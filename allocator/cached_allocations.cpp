// DeviceAllocator and its thread caches: blocks they are given, blocks that come back, and sums that statistics need.
// Nothing grows on account of a cache: before the driver is called, all are drained, unless several threads come to that
// again and again.
//
// What comes to the heap all the same, while there are caches: sizes above 64 KiB; everything while a pool is recorded
// into, frees wait for other streams (each malloc looks whether they are done), history is on or caching is off; frees of
// blocks that other streams use, and of blocks that a cache cannot take. Rounding to divisions of powers of two is the heap's
// alone, and closes the caches, too.
#include <algorithm>
#include <new>

#include "base/bytes.h"
#include "base/check.h"
#include "device/addresses.h"
#include "device_allocator.h"

namespace cachalot {

namespace {

// Of what is held from the device, what all caches and depots may hold: too little to be noticed. (With a 1024th frag_toy
// needed 0.47 % more, over 16 sizes of its blocks; 0.22 % with this: bench/page_heap.py --caches.)
constexpr std::size_t kPartCached = 4096;
// Where less than this part of the memory is left, nothing is cached: each block should lie where it fits best. Nor while
// a thread's small blocks of the page heap are to lie between large ones, since their own pages are used up.
constexpr std::size_t kPartLeft = 32;

}  // namespace

// --- whether there are caches ------------------------------------------------------------------------------------------

void DeviceAllocator::use_thread_caches(bool wanted) {
  caches_wanted_ = wanted && has_asymmetric_fences();
  if (caches_wanted_ && caches_ == nullptr) {
    device_bytes_ = device_->properties().total_bytes;
    ThreadCaches::Heap heap = {[this](Block& block) { put_back_cached(block); }, [this] { come_to_heap(); }};
    caches_ = std::make_unique<ThreadCaches>(mutex_, std::move(heap));
    set_mode(kCaching, true);
  }
  open_or_close_caches();
  if (!caches_are_open()) drain_caches();
}

void DeviceAllocator::open_or_close_caches() {
  const bool open = caches_wanted_ && caches_ != nullptr && (rare_ & kNotThroughCaches) == 0 && !rounds_by_divisions_;
  caches_open_.store(open, std::memory_order_release);  // with caches_, which may have been made just now
}

// --- malloc -----------------------------------------------------------------------------------------------------------

void* DeviceAllocator::allocate_through_cache(std::size_t bytes, Stream stream) {
  const StreamKey key = identify(stream).key;
  void* ptr = key.is_immortal() ? nullptr : caches_->try_allocate(bytes, key);
  if (ptr == nullptr) ptr = caches_->allocate(bytes, key);
  return ptr != nullptr ? ptr : allocate_for_cache(bytes, stream);
}

// The heap serves, and while it is at it gives the cache some more of the size.
void* DeviceAllocator::allocate_for_cache(std::size_t bytes, Stream stream) {
  const Lock lock(mutex_);
  if ((rare_ & kBypassed) != 0) return allocate_uncached(bytes);
  come_to_heap();
  prepare(stream);
  const Request request = make_request(bytes, stream);
  if (caches_are_open()) {
    if (void* ptr = caches_->allocate(bytes, request.stream().key)) return ptr;  // it only had to be gathered
  }
  // Before a block is chosen: a new cache takes from others, and what they give back merges with what is free.
  StreamCache* cache = caches_are_open() ? caches_->of_this_thread(request.stream().key) : nullptr;
  Block* block = find_free(request);
  small_is_used_up_ = block == nullptr && pages_ != nullptr;
  // What is free between large blocks should stay so, for them, while the cache has small blocks that merge.
  if (cache != nullptr && small_is_used_up_ && caches_->return_own(*cache)) block = search(request);
  if (block == nullptr) block = &obtain(request, nullptr);
  // The lock may have been let go since; what is borrowed from other pools is theirs; and what lies between large blocks
  // should merge with them as soon as it is free (caching it cost gpt2_varlen 1.6 % of memory).
  if (cache == nullptr || !caches_are_open() || block->arena != request.arena)
    return hand_out(*block, request.rounded, bytes, splits(*block, request), nullptr);
  take_for_cache(*cache, *block, request);
  caches_->hand_out(*cache, *block, bytes);
  refill(*cache, request);
  return as_pointer(block->address);
}

// Of what is free already. The heap never grows for it.
void DeviceAllocator::refill(StreamCache& cache, Request request) {
  std::uint32_t blocks = caches_->more_blocks(cache, SizeClass::of(request.rounded));
  try {
    for (; blocks != 0; --blocks) {
      Block* block = search(request);
      if (block == nullptr) return;
      caches_->add(cache, take_for_cache(cache, *block, request));
    }
  } catch (const std::bad_alloc&) {  // there is no host memory for another block: fewer will do
  }
}

// From the bins, as hand_out, but that it is neither allocated nor counted yet.
Block& DeviceAllocator::take_for_cache(StreamCache& cache, Block& block, Request request) {
  std::uint16_t* const word = cache.depot->words.take();
  const InactiveSplit change = heap_.take(block, request.rounded, request.bytes, splits(block, request));
  counters_.inactive_split(PoolKind::small, change.blocks, change.bytes);
  block.size_and_flags = block.size() | Block::kCached;
  const auto size_class = static_cast<std::uint16_t>(SizeClass::of(block.size()));
  block.lease = {word, size_class, SizeClass::first(size_class)};
  return block;
}

// --- free -------------------------------------------------------------------------------------------------------------

bool DeviceAllocator::deallocate_through_cache(Block& block, const void* ptr) {
  return caches_->deallocate(block, ptr) || deallocate_to_heap(block, ptr);
}

bool DeviceAllocator::deallocate_through_cache(Block& block, const void* ptr, std::size_t bytes, Stream stream) {
  return block.is_lent(as_address(ptr)) && block.lent_bytes() == bytes && is_known_as_own(block, stream) &&
         caches_->deallocate(block, ptr);
}

// Before anything that the heap does to a live block while there are caches.
void DeviceAllocator::leave_caches(Block& block) {
  come_to_heap();
  if (block.has(Block::kCached)) end_lease(block);
}

// From now on as any other that the heap has allocated: the sums have counted it in, the statistics will count it out.
void DeviceAllocator::end_lease(Block& block) {
  block.requested = block.lent_bytes() & Block::kRequestedBits;
  LentWords::give_back(block.lease.word);
  block.size_and_flags = block.size() | Block::kAllocated;
  block.uses = {nullptr, 0};
}

void DeviceAllocator::put_back_cached(Block& block) {
  LentWords::give_back(block.lease.word);
  const InactiveSplit change = heap_.put_back(block);
  counters_.inactive_split(PoolKind::small, change.blocks, change.bytes);
}

bool DeviceAllocator::drain_caches() { return caches_ != nullptr && caches_->drain(); }

// For a small block, of which the heap has none. False: the heap should rather grow.
bool DeviceAllocator::drain_caches_or_grow() {
  if (caches_ == nullptr) return true;
  if (caches_->drains_are_of_no_use()) return false;
  caches_->drain();
  return true;
}

void DeviceAllocator::drain_thread_caches() {
  const Lock lock(mutex_);
  drain_caches();
}

// --- sums -------------------------------------------------------------------------------------------------------------

// Before the statistics change: so peaks are exact as long as threads take turns, however small their steps. Of threads that
// run right now some of what they do is in, and some is not.
void DeviceAllocator::come_to_heap() {
  const std::size_t most = std::min(limit_, device_bytes_);
  const bool is_scarce = (small_is_used_up_ && caches_->threads() == 1) || held_bytes_ > most - most / kPartLeft;
  caches_->set_budget(is_scarce ? 0 : held_bytes_ / kPartCached);
  caches_->for_each([this](ThreadCache& cache) {
    if (cache.sums.has_news()) gather(cache);
  });
}

void DeviceAllocator::gather(ThreadCache& cache) { counters_.gathered(PoolKind::small, cache.sums.gather()); }

void DeviceAllocator::gather_all() {
  if (caches_ == nullptr) return;
  const ThreadCaches::Recall hold(caches_.get());
  gather_held();
}

void DeviceAllocator::gather_held() {
  caches_->for_each([this](ThreadCache& cache) { gather(cache); });
}

}  // namespace cachalot
