// The HotCache is what a thread used last of all ThreadCaches: the cache of one stream. The usual malloc and free of a small block
// are served from there, and from the stack at hand, without a call, so that they need few registers. ThreadCaches may serve where
// it cannot.
//
// An id says which ThreadCaches these are, so that no pointer to them is followed.
//
// Thread safety: from any thread, without the device's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "blocks/block_pool.h"
#include "caches/depot.h"
#include "caches/thread_cache.h"
#include "device/addresses.h"

CACHALOT_BEGIN

class HotCache {
 public:
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();  // the id of no ThreadCaches

  // Returns whether the thread used these last. With kNone: false.
  CACHALOT_FAST_PATH static bool is_of(std::uint64_t caches) { return hot_.caches == caches; }

  // These three require that is_of() is true for the caches of the device, and that the caches are open.
  // Returns a block for `bytes` in [1, SizeClass::kLargestBytes], or null: then ask ThreadCaches.
  CACHALOT_FAST_PATH static void* allocate(std::size_t bytes, StreamKey stream);
  // Takes the block that was handed out from a cache at `ptr`. Returns false if nothing was done: then ask
  // ThreadCaches.
  CACHALOT_FAST_PATH static bool deallocate(Block& block, const void* ptr);
  // Does the same if `bytes` were asked for, and `stream` is known without a question to the device to be the block's own.
  CACHALOT_FAST_PATH static bool deallocate(Block& block, const void* ptr, std::size_t bytes, Stream stream);

  CACHALOT_FAST_PATH static bool is_of(std::uint64_t caches, StreamKey stream) {
    return is_of(caches) && hot_.stream == stream;
  }
  // Requires that it is of some caches.
  static StreamCache& get() { return *hot_.cache; }
  static void set(std::uint64_t caches, StreamCache& cache) { hot_ = {caches, cache.stream, &cache}; }
  static void forget() { hot_ = {}; }

 private:
  struct Hot {
    std::uint64_t caches;
    StreamKey stream;
    StreamCache* cache;  // not null where `caches` is the id of some
  };

  CACHALOT_FAST_PATH static bool take_back(Block& block, const void* ptr, std::size_t requested);

  // Initial-exec: a few bytes, and no call to find them, in shared libraries too.
  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local Hot hot_ = {0, {}, nullptr};
};

CACHALOT_FAST_PATH void* HotCache::allocate(std::size_t bytes, StreamKey stream) {
  if (hot_.stream != stream) [[unlikely]]
    return nullptr;
  StreamCache& cache = *hot_.cache;
  ThreadCache& mine = cache.owner;
  if (!mine.enter()) [[unlikely]]
    return nullptr;
  const std::size_t size_class = SizeClass::of(bytes);
  const void* address = cache.front_address;
  Block* block = cache.front;
  if (block != nullptr && block->lease.size_class == static_cast<std::uint16_t>(size_class)) {
    cache.front = nullptr;
  } else if (cache.count(size_class) != 0) {
    block = &cache.pop(size_class);
    address = reinterpret_cast<const void*>(block->address);
  } else {
    mine.leave();
    return nullptr;
  }
  block->mark_lent(bytes);
  mine.sums.allocated(as_signed(SizeClass::bytes(size_class)), as_signed(bytes));
  mine.leave();
  return const_cast<void*>(address);
}

CACHALOT_FAST_PATH bool HotCache::deallocate(Block& block, const void* ptr) {
  const std::size_t requested = block.lent_bytes(as_address(ptr));
  if (requested == 0 || hot_.stream != block.arena->stream.key) [[unlikely]]
    return false;
  return take_back(block, ptr, requested);
}

CACHALOT_FAST_PATH bool HotCache::deallocate(Block& block, const void* ptr, std::size_t bytes, Stream stream) {
  if (bytes == 0 || block.lent_bytes(as_address(ptr)) != bytes) [[unlikely]]
    return false;
  const StreamKey key = block.arena->stream.key;
  // A key that is of a handle is that of a stream that does not end.
  const bool is_own = key == StreamKey::of_handle(stream) || block.arena->is_known_as(stream);
  if (!is_own || hot_.stream != key) [[unlikely]]
    return false;
  return take_back(block, ptr, bytes);
}

// The cache is of the block's stream.
CACHALOT_FAST_PATH bool HotCache::take_back(Block& block, const void* ptr, std::size_t requested) {
  StreamCache& cache = *hot_.cache;
  ThreadCache& mine = cache.owner;
  if (!mine.enter()) [[unlikely]]
    return false;
  const std::int64_t bytes = as_signed(block.size());
  Block* const before = cache.front;
  if (!mine.has_room_for(bytes) || (before != nullptr && !cache.has_place_for(*before))) [[unlikely]] {
    mine.leave();
    return false;
  }
  if (before != nullptr) cache.push(*before);
  cache.put_in_front(block, ptr);
  mine.sums.freed(bytes, as_signed(requested));
  block.mark_cached();
  mine.leave();
  return true;
}

CACHALOT_END
