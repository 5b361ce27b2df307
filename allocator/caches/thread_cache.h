// One thread's cache of one device's small blocks, so that a malloc and a free of them take no lock.
//
// Blocks of a cache belong to the heap's tables as any other; there they are marked kCached, which is neither allocated
// nor free. Block::lent_bytes shows whether the user has one, and changes without the heap's lock.
//
// A class is a block size: the multiples of 512 B up to 64 KiB. So a cache hands out blocks of exactly the size that the
// heap would, nothing is lost to rounding, and statistics are the same with caches and without.
//
// Thread safety: a cache is used by its thread, between enter() and leave(), or by the holder of the device's mutex: its
// thread, or any thread that has recalled it (ThreadCaches::Recall). Its sums may be read at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "base/thread_local_state.h"
#include "blocks/block.h"
#include "blocks/counters.h"
#include "caches/depot.h"

CACHALOT_BEGIN

// The sums of a thread's allocations and frees through its cache. Bytes are those of blocks.
class CacheSums {
 public:
  CACHALOT_FAST_PATH void allocated(std::int64_t block_bytes, std::int64_t requested_bytes) {
    blocks_.add(1);
    bytes_.add(block_bytes);
    requested_.add(requested_bytes);
  }
  CACHALOT_FAST_PATH void freed(std::int64_t block_bytes, std::int64_t requested_bytes) {
    blocks_.subtract(1);
    bytes_.subtract(block_bytes);
    requested_.subtract(requested_bytes);
  }
  // Bytes handed out less those taken back: negative where a thread frees what others allocate.
  std::int64_t bytes() const { return bytes_.current(); }
  // Returns the change of bytes() since the last gather.
  std::int64_t ungathered_bytes() const { return bytes_.ungathered(); }
  bool has_news() const { return blocks_.has_news(); }
  // Returns the changes since the last time, under the device's mutex. While its thread is at work a peak may be
  // missed.
  Counters::Gathered gather() { return {blocks_.gather(), bytes_.gather(), requested_.gather()}; }

 private:
  ThreadSum blocks_, bytes_, requested_;
};

class ThreadCache;

// The part of a thread's cache for one stream, of the default pool's small blocks: a stack for each class, and in front of
// them the block that was freed last. A thread that frees and allocates one size in turn does not need the stacks; and the
// address that malloc returns need not wait until free has found the block that belongs to it.
struct alignas(kCacheLine) StreamCache : HostObject {
  StreamCache(StreamKey of, Depot& shared, ThreadCache& thread)
      : stream(of), depot(&shared), owner(thread), words(shared.add_words()) {}

  std::uint32_t count(std::size_t size_class) const { return counts[size_class]; }
  Block** bottom(std::size_t size_class) { return &places[SizeClass::first(size_class)]; }
  std::span<Block* const> blocks(std::size_t size_class) const {
    return {&places[SizeClass::first(size_class)], counts[size_class]};
  }
  bool is_full(std::size_t size_class) const { return counts[size_class] == SizeClass::most(size_class); }
  CACHALOT_FAST_PATH bool has_place_for(const Block& block) const {
    return counts[block.lease.size_class] != block.lease.most;
  }
  // There is a place for it.
  CACHALOT_FAST_PATH void push(Block& block) {
    places[block.lease.first_place + counts[block.lease.size_class]++] = &block;
  }
  // It is not empty.
  CACHALOT_FAST_PATH Block& pop(std::size_t size_class) {
    return *places[SizeClass::first(size_class) + --counts[size_class]];
  }
  CACHALOT_FAST_PATH void put_in_front(Block& block, const void* address) {
    front = &block;
    front_address = address;
  }
  // The batch that lies lowest, and so longest, has been copied.
  void drop_batch(std::size_t size_class);

  StreamKey stream;
  Depot* depot;  // shared with the stream's caches in other threads; null once the stream has ended
  ThreadCache& owner;
  Block* front = nullptr;
  const void* front_address = nullptr;  // its
  std::array<std::uint8_t, SizeClass::kCount> counts{};
  std::array<std::uint8_t, SizeClass::kCount> refills{};  // by how many blocks the heap was last asked for more
  LentWords& words;                                       // of blocks that come from the heap; the depot's
  std::array<Block*, SizeClass::kPlaces> places;          // by class; as many as counts says are set
};
static_assert(SizeClass::most(0) <= std::numeric_limits<std::uint8_t>::max());

// A thread that is turned away from a recalled cache uses the heap, whose lock waits for its return.
class alignas(kCacheLine) ThreadCache : public Recallable, public HostObject {
 public:
  StreamCache* find(StreamKey stream) const;
  // For a stream of which it has none.
  StreamCache& add(StreamKey stream, Depot& depot);

  // A stream of the cache has ended: its part is of no use.
  void end(StreamCache& cache);
  bool has_ended_streams() const { return has_ended_streams_; }
  // Called by the thread itself, which uses none of them any more. Empties them of blocks freed into them since.
  template <typename Visit>
  void forget_ended_streams(Visit&& visit);

  // Bytes of blocks that lie in the cache (exact for whom the cache is, and roughly for others), and how many it may hold.
  std::int64_t cached_bytes() const { return supplied_bytes_.load(std::memory_order_relaxed) - sums.bytes(); }
  CACHALOT_FAST_PATH bool has_room_for(std::int64_t bytes) const { return sums.bytes() - bytes >= floor_; }
  std::int64_t room() const { return limit_ - cached_bytes(); }
  bool is_closed() const { return limit_ == 0 && cached_bytes() == 0; }
  void set_limit(std::int64_t bytes);
  // Blocks came, or (negative) went, otherwise than through the thread's mallocs and frees.
  void supplied(std::int64_t bytes);

  // Takes out the block in front and the largest ones, to bring the cache to three quarters of its limit: of small ones it
  // can keep more.
  template <typename Visit>
  void evict(Visit&& visit);
  // Everything.
  template <typename Visit>
  void empty(Visit&& visit);
  // Everything of a stream.
  template <typename Visit>
  void empty(StreamCache& cache, Visit&& visit);
  std::size_t cached_blocks() const;
  // The first thing that is wrong, or "".
  std::string validate() const;
  std::size_t metadata_bytes() const;

  CacheSums sums;

 private:
  template <typename Visit>
  void empty(StreamCache& cache, std::size_t size_class, Visit&& visit);
  template <typename Visit>
  void empty_front(StreamCache& cache, Visit&& visit);

  std::atomic<std::int64_t> supplied_bytes_{0};  // by the heap and the depots, less what went back to them
  std::int64_t limit_ = 0;
  std::int64_t floor_ = 0;  // of sums.bytes(): below it, too much is cached
  Vector<std::unique_ptr<StreamCache>> streams_;
  bool has_ended_streams_ = false;
};

template <typename Visit>
void ThreadCache::empty(StreamCache& cache, std::size_t size_class, Visit&& visit) {
  cache.refills[size_class] = 0;
  if (cache.count(size_class) == 0) return;
  supplied(-as_signed(cache.count(size_class) * SizeClass::bytes(size_class)));
  while (cache.count(size_class) != 0) visit(cache.pop(size_class));
}

template <typename Visit>
void ThreadCache::empty_front(StreamCache& cache, Visit&& visit) {
  if (cache.front == nullptr) return;
  supplied(-as_signed(cache.front->size()));
  visit(*std::exchange(cache.front, nullptr));
}

template <typename Visit>
void ThreadCache::evict(Visit&& visit) {
  for (const auto& stream : streams_) empty_front(*stream, visit);
  for (std::size_t i = SizeClass::kCount; i-- > 0;) {
    for (const auto& stream : streams_) {
      if (cached_bytes() <= limit_ / 4 * 3) return;
      empty(*stream, i, visit);
    }
  }
}

template <typename Visit>
void ThreadCache::empty(StreamCache& cache, Visit&& visit) {
  empty_front(cache, visit);
  for (std::size_t i = 0; i < SizeClass::kCount && cached_bytes() != 0; ++i) empty(cache, i, visit);
  cache.refills.fill(0);
}

template <typename Visit>
void ThreadCache::forget_ended_streams(Visit&& visit) {
  for (const auto& stream : streams_) {
    if (stream->depot == nullptr) empty(*stream, visit);
  }
  std::erase_if(streams_, [](const auto& stream) { return stream->depot == nullptr; });
  has_ended_streams_ = false;
}

template <typename Visit>
void ThreadCache::empty(Visit&& visit) {
  for (const auto& stream : streams_) empty(*stream, visit);
}

CACHALOT_END
