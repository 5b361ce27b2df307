// An Arena is the free blocks of one pool and one stream: a block belongs for life to the stream its segment was
// allocated for, and is reused on that stream only. A BlockPool is the arenas of one kind (small or large) of one pool.
// Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "blocks/free_bins.h"
#include "cachalot/pool_id.h"

CACHALOT_BEGIN

class BlockPool;
class Growth;
struct PrivatePool;

// Which of an arena's free blocks a search may use: those that became free in or before an epoch.
struct Reach {
  enum class Kind : std::uint8_t { none, until, all };
  Kind kind = Kind::none;
  std::uint32_t epoch = 0;

  bool covers(std::uint32_t freed) const {
    return kind == Kind::all || (kind == Kind::until && has_reached(epoch, freed));
  }
  // Epochs wrap around; those compared are less than 2^31 apart.
  static bool has_reached(std::uint32_t now, std::uint32_t epoch) {
    return static_cast<std::int32_t>(now - epoch) >= 0;
  }
};

struct Arena {
  Arena(BlockPool& owner, const KnownStream& for_stream) : pool(owner), stream(for_stream) {}
  BlockPool& pool;
  const KnownStream stream;
  std::atomic<bool> has_ended{false};  // its stream is no more: no request comes
  std::uint32_t requests = 0;          // under way, with the lock let go now and then: it must stay
  std::uint32_t epoch = 1;             // of what becomes free now; moves with the stream's StreamClock in the page heap
  FreeBins bins;
  Reach reach;  // of the search for idle pages that is under way

  // Whether the handle is its stream's, as far as can be told without asking the device: the stream is not known to be no
  // more, and not each thread means another one by it.
  bool is_known_as(Stream handle) const {
    return handle == stream.handle && !is_per_thread(handle) && !has_ended.load(std::memory_order_relaxed);
  }
  bool may_use(const Block& block) const { return reach.covers(block.bin.epoch); }
};

class BlockPool {
 public:
  // `owner` is null for the default pools.
  BlockPool(PoolKind kind, PoolId id, PrivatePool* owner, Growth* where = nullptr)
      : growth(where), kind_(kind), id_(id), owner_(owner) {}

  PoolKind kind() const { return kind_; }
  PoolId id() const { return id_; }
  PrivatePool* owner() const { return owner_; }

  // nullptr: there is none.
  Arena* look_up(const KnownStream& stream) {
    if (last_key_ == stream.key) [[likely]]
      return last_;
    Arena* const found = find(stream.key);
    if (found != nullptr) remember(*found);
    return found;
  }
  // There is none.
  Arena& add(const KnownStream& stream);
  // Whether the arena that was asked for last is that of a stream that this handle names.
  bool last_is_of(Stream handle) const { return last_key_ == StreamKey::of_handle(handle); }
  Arena* last() const { return last_; }
  Arena* find(StreamKey key) const {
    const auto found = by_stream_.find(key);
    return found != by_stream_.end() ? found->second : nullptr;
  }
  const std::vector<std::unique_ptr<Arena>>& arenas() const { return arenas_; }
  // Removes the arenas for which leaves(arena), which does not throw: they have no block, live or free.
  template <typename Leaves>
  void remove_if(Leaves&& leaves);

  // Where its memory comes from.
  Growth* growth;
  // Searches made while garbage collection is on: the clock by which a free block's age is told.
  std::uint64_t clock = 0;

 private:
  void remember(Arena& arena) {
    last_key_ = arena.stream.key;
    last_ = &arena;
  }

  PoolKind kind_;
  PoolId id_;
  PrivatePool* owner_;
  StreamKey last_key_ = StreamKey::none();
  Arena* last_ = nullptr;  // its arena, if that is a key
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::unordered_map<StreamKey, Arena*> by_stream_;
};

template <typename Leaves>
void BlockPool::remove_if(Leaves&& leaves) {
  std::erase_if(arenas_, [&](const std::unique_ptr<Arena>& arena) {
    if (!leaves(*arena)) return false;
    if (last_ == arena.get()) last_key_ = StreamKey::none();
    by_stream_.erase(arena->stream.key);
    return true;
  });
}

CACHALOT_END
