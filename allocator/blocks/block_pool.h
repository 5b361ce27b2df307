// An Arena is the free blocks of one pool and one stream: a block belongs for life to the stream its segment was
// allocated for, and is reused on that stream only. A BlockPool is the arenas of one kind (small or large) of one pool.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "blocks/free_bins.h"
#include "cachalot/pool_id.h"

namespace cachalot {

class BlockPool;
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
  Arena(BlockPool& owner, Stream for_stream) : pool(owner), stream(for_stream) {}
  BlockPool& pool;
  Stream stream;
  std::uint32_t epoch = 1;  // of what becomes free now; moves with the stream's StreamClock in the page heap
  FreeBins bins;
  Reach reach;  // of the search for idle pages that is under way

  bool may_use(const Block& block) const { return reach.covers(block.bin.epoch); }
};

class BlockPool {
 public:
  // `owner` is null for the default pools.
  BlockPool(PoolKind kind, PoolId id, PrivatePool* owner) : kind_(kind), id_(id), owner_(owner) {}

  PoolKind kind() const { return kind_; }
  PoolId id() const { return id_; }
  PrivatePool* owner() const { return owner_; }

  Arena& arena(Stream stream) {
    if (last_ != nullptr && last_->stream == stream) [[likely]]
      return *last_;
    return find_or_add(stream);
  }
  const std::vector<std::unique_ptr<Arena>>& arenas() const { return arenas_; }

  // Searches made while garbage collection is on: the clock by which a free block's age is told.
  std::uint64_t clock = 0;

 private:
  Arena& find_or_add(Stream stream);

  PoolKind kind_;
  PoolId id_;
  PrivatePool* owner_;
  Arena* last_ = nullptr;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::unordered_map<Stream, Arena*> by_stream_;
};

}  // namespace cachalot
