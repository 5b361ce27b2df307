// The FastPath serves malloc and free of one device as long as free blocks serve: from a thread's cache without a lock,
// from the heap with one. The parts in SlowPath do the rest.
//
// It owns the heap's state, so that a malloc finds the state at a known offset from the one pointer that it has.
#pragma once

#include <cstddef>

#include "base/check.h"
#include "growth/supply.h"
#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/limits.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "heap/stream_clocks.h"
#include "heap/uncached.h"

CACHALOT_BEGIN

// The SlowPath lists the parts that serve when no free block of the request's arena does, or a rare mode is on.
struct SlowPath {
  PrivatePools& pools;
  StreamRegistry& streams;
  PendingFrees& frees;
  CacheBridge& caches;
  Supply& supply;
  Uncached& uncached;
  Limits& limits;
};

class FastPath {
 public:
  // `slow` is used from the first allocation on, not before.
  FastPath(std::shared_ptr<Device> device, PageMap& page_map, const Options& options, const SlowPath& slow)
      : state(std::move(device), page_map, options), slow_(slow) {}
  FastPath(const FastPath&) = delete;
  FastPath& operator=(const FastPath&) = delete;

  // Contracts are those of CachingAllocator's methods of the same names. `block` is the entry of `ptr` in the page map.
  // Returns false, having done nothing, if `ptr` is not a live allocation of it.
  CACHALOT_FAST_PATH void* allocate(std::size_t bytes, Stream stream);
  void* allocate_placed(std::size_t bytes, Stream stream, const AllocationPlace& place);
  void* allocate_at(std::size_t bytes, Stream stream, Address address);
  CACHALOT_FAST_PATH bool deallocate(Block& block, const void* ptr);
  // Throws InvalidArgument if `bytes` were not requested for it.
  CACHALOT_FAST_PATH bool deallocate(Block& block, const void* ptr, std::size_t bytes, Stream stream);
  bool record_stream(Block& block, const void* ptr, const KnownStream& stream);
  // Returns whether HotCache serves this device: its caches are open, and the thread has used them last.
  CACHALOT_FAST_PATH bool has_hot_cache() const {
    return HotCache::is_of(state.open_caches.load(std::memory_order_acquire));
  }

  HeapState state;

 private:
  [[gnu::noinline]] void* allocate_from_heap(std::size_t bytes, Stream stream);
  void* allocate(std::size_t bytes, Stream stream, const Context& context);
  void* allocate_with_context(std::size_t bytes, Stream stream);
  [[gnu::noinline]] void* obtain(Request request, const Context& context, Held& held) CACHALOT_HELD;
  void* tell_if_crossed(void* ptr, Held& held) CACHALOT_HELD;
  void* hand_out_aligned(Block& block, Request request, Alignment alignment, const Context& context,
                         const Held& held) CACHALOT_HELD;
  [[noreturn]] void refuse(std::size_t bytes);
  void enter(Stream stream, Held& held) CACHALOT_HELD;
  Request make_request(std::size_t bytes, Stream stream, const Held& held) CACHALOT_HELD;
  Request make_request(std::size_t bytes, Stream stream, const AllocationPlace& place, const Held& held) CACHALOT_HELD;
  [[gnu::noinline]] Arena& arena_of_request(BlockPool& pool, Stream stream, const Held& held) CACHALOT_HELD;
  [[gnu::noinline]] void* allocate_through_cache(std::size_t bytes, Stream stream);
  Block* free_block_at(Address address, Request request, const Held& held) CACHALOT_HELD;
  void* allocate_for_cache(std::size_t bytes, Stream stream);

  void free_block(Block& block, const Context& context, Held& held) CACHALOT_HELD;
  bool take_live(Block& block, const void* ptr, const Held& held) CACHALOT_HELD;
  [[gnu::noinline]] bool deallocate_to_heap(Block& block, const void* ptr);
  bool deallocate_with_context(Block& block, const void* ptr);
  [[gnu::noinline]] bool deallocate_through_cache(Block& block, const void* ptr);
  bool deallocate_through_cache(Block& block, const void* ptr, std::size_t bytes, Stream stream);
  [[gnu::noinline]] bool deallocate_checked(Block& block, const void* ptr, std::size_t bytes, Stream stream);

  const SlowPath& slow_;
};

// Rare cases are functions of their own, so that the usual one needs no stack frame.
CACHALOT_FAST_PATH void* FastPath::allocate(std::size_t bytes, Stream stream) {
  const std::uint64_t caches = state.open_caches.load(std::memory_order_acquire);
  if (caches == HotCache::kNone || bytes - 1 >= SizeClass::kLargestBytes) return allocate_from_heap(bytes, stream);
  if (HotCache::is_of(caches)) [[likely]] {
    if (void* ptr = HotCache::allocate(bytes, StreamKey::of_handle(stream))) [[likely]]
      return ptr;
  }
  return allocate_through_cache(bytes, stream);
}

CACHALOT_FAST_PATH bool FastPath::deallocate(Block& block, const void* ptr) {
  const std::uint64_t caches = state.open_caches.load(std::memory_order_acquire);
  if (caches == HotCache::kNone) return deallocate_to_heap(block, ptr);
  return (HotCache::is_of(caches) && HotCache::deallocate(block, ptr)) || deallocate_through_cache(block, ptr);
}

CACHALOT_FAST_PATH bool FastPath::deallocate(Block& block, const void* ptr, std::size_t bytes, Stream stream) {
  return (has_hot_cache() && HotCache::deallocate(block, ptr, bytes, stream)) ||
         deallocate_checked(block, ptr, bytes, stream);
}

CACHALOT_END
