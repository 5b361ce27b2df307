// A second, slow and small allocator written from PyTorch's rules alone: the oracle of the random tests.
//
// One ReferenceHeap is one device with its memory, streams and clock. It decides what the real allocator must decide
// (segment, offset, what is split, merged, kept, given back) and keeps the nine statistics and the scalars in the
// plainest way. It shares no code with the allocator but its plain values (Options, DeviceStats, PoolId).
// Blocks are in a map by address, free blocks in a set by (stream, size, address): nothing here is clever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/options.h"
#include "cachalot/stats.h"

namespace cachalot {

class ReferenceHeap {
 public:
  using Name = std::uint64_t;  // of an allocation: the caller's, never used twice

  ReferenceHeap(std::size_t device_bytes, const Options& options);

  struct Place {
    std::size_t segment = 0;  // in order of creation
    std::size_t segment_bytes = 0;
    std::size_t offset = 0;
    std::size_t block_bytes = 0;
  };
  // nullopt: out of memory. bytes > 0.
  std::optional<Place> allocate(Name name, std::size_t bytes, Stream stream);
  void deallocate(Name name);
  void record_stream(Name name, Stream stream);
  void empty_cache();
  void set_memory_fraction(double fraction);
  void configure(const Options& options) { options_ = options; }
  void reset_peak_stats();
  void reset_accumulated_stats();

  // Private pools, redirected to by the thread that asks; requests go to the pool begun last. As in PyTorch, such a
  // thread's mallocs reclaim nothing that waits, and its empty_cache reaches only pools that were released; as not in PyTorch, it recovers from
  // a full device as others do (W2).
  void create_or_retain_pool(PoolId pool);
  void begin_allocate_to_pool(PoolId pool);
  void end_allocate_to_pool(PoolId pool);
  void release_pool(PoolId pool);
  void set_no_split(PoolId pool) { pools_.at(pool).no_split = true; }
  void set_use_on_oom(PoolId pool, bool use) { pools_.at(pool).use_on_oom = use; }
  void empty_cache(PoolId pool);

  // A graph capture of `stream`: its requests go to the pool, and until the end nothing is asked of events, waited for
  // or given back; frees used elsewhere get their events after it.
  void begin_capture(PoolId pool, Stream stream);
  void end_capture(PoolId pool) { end_allocate_to_pool(pool); }
  bool captures(Stream stream) const;

  // Asked when no free block serves a request; returns whether it freed anything.
  void set_free_memory_callback(std::function<bool()> callback) { free_memory_callback_ = std::move(callback); }

  // The device: work queued on a stream, and the host's clock.
  void launch(Stream stream, std::int64_t duration_ns);
  void advance(std::int64_t ns) { now_ns_ += ns; }
  std::int64_t now_ns() const { return now_ns_; }

  const DeviceStats& stats() const { return stats_; }
  std::size_t device_used_bytes() const { return device_used_bytes_; }
  std::size_t largest_free() const;  // bytes of the largest free block of any pool
  bool is_live(Name name) const { return live_.count(name) > 0; }
  bool pool_exists(PoolId pool) const { return pools_.count(pool) > 0; }
  int pool_users(PoolId pool) const { return pool_exists(pool) ? pools_.at(pool).users : 0; }
  bool allocates_to(PoolId pool) const;

 private:
  struct Pool;
  struct FreeKey {  // the order of best fit: own stream, smallest size, lowest address
    Stream stream;
    std::size_t size;
    Address address;
    friend auto operator<=>(const FreeKey&, const FreeKey&) = default;
  };
  struct BlockPool {
    PoolKind kind;
    Pool* owner;
    std::set<FreeKey> free;
    std::uint64_t searches = 0;  // the clock of garbage collection
  };
  struct Pool {
    PoolId id;
    int users = 0;
    std::size_t segments = 0;
    bool no_split = false, use_on_oom = false;
    BlockPool small{PoolKind::small, this, {}}, large{PoolKind::large, this, {}};
    BlockPool& of(PoolKind kind) { return kind == PoolKind::small ? small : large; }
  };
  enum class State { free, allocated, pending };
  struct Segment {
    std::size_t ordinal;
    Address address;
    std::size_t size;
    Stream stream;
    BlockPool* pool;
  };
  struct Block {
    Address address;
    std::size_t size;
    Segment* segment;
    State state = State::free;
    std::size_t requested = 0;
    std::set<Stream> used_on{};
    int events = 0;
    std::uint64_t freed_at_search = 0;
    bool is_split() const { return size != segment->size; }
  };
  struct Request {
    std::size_t requested, size, segment_size;
    Stream stream;
    BlockPool* pool;
  };
  struct Redirection {
    PoolId pool;
    std::optional<Stream> captured = {};  // of a capture: its stream; else all of the thread's requests
  };
  struct Pending {
    std::int64_t done_at_ns;
    Block* block;
  };

  std::size_t round_size(std::size_t bytes) const;
  std::size_t segment_size(std::size_t rounded) const;
  Request request(std::size_t bytes, Stream stream);

  Block* find_free(Request& request, bool ticks = true);
  Block* find_in_use_on_oom_pools(Request& request);
  Block* grow(const Request& request);
  bool may_split(const Block& block, const Request& request) const;
  void take(Block& block, const Request& request);

  const Redirection* redirection_of(Stream stream) const;
  bool capturing() const;

  void free_block(Block& block);
  void wait_for_uses(Block& block);
  void wait_for_deferred();
  void reclaim_finished();
  void synchronize_pending(const Pool* only = nullptr);
  bool synchronize_next(const Pool* owner);
  void collect_garbage();
  bool release_oversize(const Request& request);
  void release_unsplit(BlockPool& pool);
  void release_cached();
  void release_released_pools();
  void release_released_pool(Pool& pool);
  void release_segment(Block& block);

  Block& block_at(const FreeKey& key) { return blocks_.at(key.address); }
  void insert_free(Block& block);
  void erase_free(Block& block);
  bool collects_garbage() const { return limit_ && options_.garbage_collection_threshold > 0; }

  static void up(StatArray& stat, const BlockPool& pool, std::size_t amount);
  static void down(StatArray& stat, const BlockPool& pool, std::size_t amount);
  static void change(StatArray& stat, const BlockPool& pool, std::int64_t amount);

  const std::size_t device_bytes_;
  Options options_;
  std::optional<std::size_t> limit_;  // of reserved bytes
  std::size_t reserved_bytes_ = 0;
  std::size_t device_used_bytes_ = 0;
  Address next_address_ = std::size_t{1} << 40;
  std::size_t next_ordinal_ = 0;

  std::map<Address, Block> blocks_;
  std::map<Address, Segment> segments_;
  std::map<PoolId, Pool> pools_;
  std::vector<Redirection> redirections_;
  std::map<Name, Block*> live_;
  std::vector<std::pair<Stream, std::deque<Pending>>> pending_;  // by stream, in the order first seen

  std::vector<Block*> deferred_;  // freed during a capture, used elsewhere: without events so far
  std::function<bool()> free_memory_callback_;

  std::map<Stream, std::int64_t> work_ends_ns_;
  std::int64_t now_ns_ = 0;
  DeviceStats stats_;
};

}  // namespace cachalot
