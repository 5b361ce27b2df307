// An Arena has the free blocks of one pool and one stream. A block always belongs to the stream for which its segment was
// allocated, and is reused on that stream only. A BlockPool has the arenas of one kind (small or large) of one pool.
// Not thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "blocks/bin.h"
#include "blocks/block.h"
#include "cachalot/device.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

// SizeBins divides sizes into bins: 64 per octave. Below 64 KiB a bin holds a single size.
struct SizeBins {
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 40;  // sizes are smaller
  static constexpr std::size_t kPerGroup = 64;                    // a group is an octave, except for the widest bins
  static constexpr std::size_t kGroups = 64;
  static constexpr std::size_t kSmallestOctave = 9;                // 512 B
  static constexpr std::size_t kFirstOfManySizes = 7 * kPerGroup;  // 64 KiB: below, a bin is not wider than 512 B
  // From here on bins are 512 MiB wide, so that sizes within one differ in 20 bits (of 512 B).
  static constexpr std::size_t kWideBytes = std::size_t{1} << 36;
  static constexpr std::size_t kWidestBin = std::size_t{1} << 29;
  static constexpr std::size_t kFirstWide = (36 - kSmallestOctave) * kPerGroup;
  static_assert(kFirstWide + (kMaxBytes - kWideBytes) / kWidestBin <= kGroups * kPerGroup);

  // Returns group x kPerGroup + bin: the octave, and the six bits below the leading one.
  static std::size_t slot_for(std::size_t bytes) {
    if (bytes >= kWideBytes) [[unlikely]]
      return kFirstWide + (bytes - kWideBytes) / kWidestBin;
    const std::size_t octave = highest_bit(bytes);
    return octave * kPerGroup + (bytes >> (octave - 6)) - (kSmallestOctave + 1) * kPerGroup;
  }
};

// BinBitmap finds the bins that hold blocks, by two levels of bits: one bit per group, and one per bin.
// Invariant: the bit of a group is set exactly if that of one of its bins is. Not thread-safe.
class BinBitmap {
 public:
  bool empty() const { return groups_ == 0; }
  bool has(std::size_t slot) const {
    return (bins_[slot / SizeBins::kPerGroup] >> slot % SizeBins::kPerGroup & 1) != 0;
  }
  // Sets the bit of a bin that holds blocks.
  CACHALOT_FAST_PATH void add(std::size_t slot) {
    const std::size_t group = slot / SizeBins::kPerGroup;
    bins_[group] |= std::uint64_t{1} << slot % SizeBins::kPerGroup;
    groups_ |= std::uint64_t{1} << group;
  }
  // Sets or clears the bit of a bin. It has no branch: whether a bin or a group is empty cannot be predicted.
  CACHALOT_FAST_PATH void mark(std::size_t slot, bool occupied) {
    const std::size_t group = slot / SizeBins::kPerGroup;
    std::uint64_t& bins = bins_[group];
    bins = with_bit(bins, slot % SizeBins::kPerGroup, occupied);
    groups_ = with_bit(groups_, group, bins != 0);
  }

  // Return one bit for each group, and for each bin of a group.
  std::uint64_t groups() const { return groups_; }
  std::uint64_t bins(std::size_t group) const { return bins_[group]; }
  // Returns the groups of larger sizes.
  std::uint64_t groups_behind(std::size_t group) const { return groups_ >> group >> 1 << group << 1; }

 private:
  static std::uint64_t with_bit(std::uint64_t word, std::size_t bit, bool value) {
    return (word & ~(std::uint64_t{1} << bit)) | std::uint64_t{value} << bit;
  }

  std::uint64_t groups_ = 0;
  std::array<std::uint64_t, SizeBins::kGroups> bins_{};  // by group
};

// FreeBins holds the free blocks of one arena, for exact best fit: the smallest that fits, and among equals the lowest
// address (the order of PyTorch's set of free blocks).
//
// Sizes fall into bins (SizeBins), which two levels of bitmap find (BinBitmap). The bins are ordered; the blocks of a bin
// are not (Bin, BinLeaf). So most operations touch two or three cache lines.
//
// The newest block stays out of the bins until the next one is inserted: very often it is the one taken or merged next.
//
// Leaves and tree nodes are kept for reuse (BinNodes), as are groups of bins: the steady state allocates nothing.
// Invariants: (1) a bit is set exactly for each bin that holds blocks; (2) the newest block is in no bin.
// Not thread-safe.
class FreeBins {
 public:
  // Blocks are smaller than this, and addresses than 2^kAddressBits.
  static constexpr std::size_t kMaxBytes = SizeBins::kMaxBytes;
  static constexpr int kAddressBits = BinKey::kAddressBits;

  FreeBins() = default;
  FreeBins(const FreeBins&) = delete;
  FreeBins& operator=(const FreeBins&) = delete;

  CACHALOT_FAST_PATH void insert(Block& block) {
    if (newest_ != nullptr) sort_in(*newest_);
    newest_ = &block;
  }

  CACHALOT_FAST_PATH void remove(Block& block) {
    if (newest_ == &block) {
      newest_ = nullptr;
    } else {
      sort_out(block);
    }
  }

  // Returns the first block in (size, address) order of at least `bytes` > 0, or null. The block stays in the bins.
  CACHALOT_FAST_PATH Block* best_fit(std::size_t bytes) const {
    if (bytes >= kMaxBytes) [[unlikely]]
      return nullptr;
    bytes = round_up(bytes, kBlockGranularity);
    // The block freed last is the best one if it fits exactly, unless its bin holds more.
    if (newest_ != nullptr && newest_->size_and_flags == bytes && !occupied_.has(SizeBins::slot_for(bytes)))
      return newest_;
    Block* block = best_fit_in_bins(bytes);
    if (newest_ == nullptr) return block;
    if (block == nullptr) return newest_->size_and_flags < bytes ? nullptr : newest_;
    const bool fits = newest_->size_and_flags >= bytes;
    return choose(as_number(fits & precedes(*newest_, *block)), newest_, block);
  }

  Block* largest() const;
  bool empty() const { return occupied_.empty() && newest_ == nullptr; }

  // Calls visit(Block&) in (size, address) order; visit must not change the bins.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for_each_of_at_least(kBlockGranularity, visit);
  }
  // Visits the blocks of at least `bytes` > 0 as for_each does.
  template <typename Visit>
  void for_each_of_at_least(std::size_t bytes, Visit&& visit) const;
  // Returns the first block in (size, address) order of at least `bytes` > 0 for which accepts(const Block&) is true, or
  // null.
  template <typename Accepts>
  Block* first_of_at_least(std::size_t bytes, Accepts&& accepts) const;
  // Visits the blocks of at least `unit` bytes, in no order, and reads no other block.
  template <typename Visit>
  void for_each_of_at_least(PowerOfTwo unit, Visit&& visit) const;

  std::string validate() const;
  std::size_t metadata_bytes() const;

 private:
  struct Group : HostObject, std::array<Bin, SizeBins::kPerGroup> {};

  CACHALOT_FAST_PATH Block* best_fit_in_bins(std::size_t bytes) const {
    const std::size_t slot = SizeBins::slot_for(bytes);
    const std::size_t group = slot / SizeBins::kPerGroup;
    std::uint64_t candidates = occupied_.bins(group) >> slot % SizeBins::kPerGroup;
    if (candidates != 0) {
      const Bin* bin = &(*groups_[group])[slot % SizeBins::kPerGroup];
      // If the request's own bin holds several sizes, all its blocks may be too small; any block of a larger bin serves.
      const std::uint64_t own_of_many_sizes = candidates & std::uint64_t{slot >= SizeBins::kFirstOfManySizes};
      const std::uint64_t key = BinKey::of(bytes, 0) & -own_of_many_sizes;
      if (Block* block = bin[lowest_bit(candidates)].first_from(key)) [[likely]]
        return block;
      candidates &= ~std::uint64_t{1};
      if (candidates != 0) return bin[lowest_bit(candidates)].first_from(0);
    }
    const std::uint64_t larger_groups = occupied_.groups_behind(group);
    if (larger_groups == 0) return nullptr;
    const std::size_t larger = lowest_bit(larger_groups);
    return (*groups_[larger])[lowest_bit(occupied_.bins(larger))].first_from(0);
  }

  CACHALOT_FAST_PATH Bin& bin_for(std::size_t slot) const {
    auto& group = groups_[slot / SizeBins::kPerGroup];
    if (group == nullptr) [[unlikely]]
      add_group(slot / SizeBins::kPerGroup);
    return (*group)[slot % SizeBins::kPerGroup];
  }
  // If host memory runs out here, the program ends, as in BinNodes.
  void add_group(std::size_t group) const noexcept;

  CACHALOT_FAST_PATH void sort_in(Block& block) const {
    const std::size_t slot = SizeBins::slot_for(block.size_and_flags);
    const std::uint64_t key = BinKey::of(block);
    bin_for(slot).insert(block, key, nodes_);
    block.bin.slot = static_cast<std::uint16_t>(slot);
    occupied_.add(slot);
  }
  CACHALOT_FAST_PATH void sort_out(Block& block) {
    BinLeaf& leaf = *block.bin.leaf;
    const std::uint32_t left = leaf.remove(block.bin.place);
    const bool of_tree = leaf.parent != nullptr;  // then another leaf holds blocks
    const std::size_t slot = block.bin.slot;
    occupied_.mark(slot, as_number((left != 0) | of_tree));
    if (as_number((left == 0) & of_tree)) [[unlikely]]
      remove_leaf(leaf, slot);
  }
  void remove_leaf(BinLeaf& leaf, std::size_t slot);

  // Puts the newest block into its bin, before a visit of all blocks in order. It changes the place of a block, not the
  // set of blocks.
  void sort_newest_in() const {
    if (newest_ != nullptr) sort_in(*newest_);
    newest_ = nullptr;
  }

  template <typename Visit>
  void for_each_leaf_from(std::size_t first, Visit&& visit) const;
  template <typename IsEnd>
  void for_each_leaf_until(std::size_t first, IsEnd&& is_end) const;
  std::string validate_order() const;
  std::string validate_group(std::size_t group) const;

  // mutable for sort_newest_in.
  mutable Block* newest_ = nullptr;
  mutable BinBitmap occupied_;
  mutable std::array<std::unique_ptr<Group>, SizeBins::kGroups> groups_;
  mutable BinNodes nodes_;
};

template <typename Visit>
void FreeBins::for_each_of_at_least(std::size_t bytes, Visit&& visit) const {
  sort_newest_in();
  if (bytes >= kMaxBytes) return;
  const std::size_t first = SizeBins::slot_for(round_up(bytes, kBlockGranularity));
  for_each_leaf_from(first, [&](const BinLeaf& leaf) {
    for (Block* block : SortedBlocks(leaf)) {
      if (block->size() >= bytes) visit(*block);
    }
  });
}

template <typename Accepts>
Block* FreeBins::first_of_at_least(std::size_t bytes, Accepts&& accepts) const {
  sort_newest_in();
  if (bytes >= kMaxBytes) return nullptr;
  Block* found = nullptr;
  for_each_leaf_until(SizeBins::slot_for(round_up(bytes, kBlockGranularity)), [&](const BinLeaf& leaf) {
    for (Block* block : SortedBlocks(leaf)) {
      if (found == nullptr && block->size() >= bytes && accepts(std::as_const(*block))) found = block;
    }
    return found != nullptr;
  });
  return found;
}

// The bin of a power of two begins with that size.
template <typename Visit>
void FreeBins::for_each_of_at_least(PowerOfTwo unit, Visit&& visit) const {
  if (newest_ != nullptr && newest_->size_and_flags >= unit.bytes()) visit(*newest_);
  for_each_leaf_from(SizeBins::slot_for(unit.bytes()), [&](const BinLeaf& leaf) {
    for (std::uint32_t i = 0; i < leaf.count; ++i) visit(*leaf.blocks[i]);
  });
}

// Calls visit(const BinLeaf&) for the leaves of the bin in a slot and of those behind it, in their order.
template <typename Visit>
void FreeBins::for_each_leaf_from(std::size_t first, Visit&& visit) const {
  for_each_leaf_until(first, [&](const BinLeaf& leaf) {
    visit(leaf);
    return false;
  });
}

// Visits leaves until is_end(const BinLeaf&) is true.
template <typename IsEnd>
void FreeBins::for_each_leaf_until(std::size_t first, IsEnd&& is_end) const {
  std::uint64_t bins_wanted = ~std::uint64_t{0} << first % SizeBins::kPerGroup;
  const std::size_t first_group = first / SizeBins::kPerGroup;
  std::uint64_t groups = occupied_.groups() & (~std::uint64_t{0} << first_group);
  for (; groups != 0; groups &= groups - 1) {
    const std::size_t group = lowest_bit(groups);
    if (group != first_group) bins_wanted = ~std::uint64_t{0};
    for (std::uint64_t bins = occupied_.bins(group) & bins_wanted; bins != 0; bins &= bins - 1) {
      for (const BinLeaf* leaf = (*groups_[group])[lowest_bit(bins)].first_leaf(); leaf != nullptr; leaf = leaf->next) {
        if (is_end(*leaf)) return;
      }
    }
  }
}

class BlockPool;
class Growth;
struct PrivatePool;

// The free blocks of an arena that a search may use: those that became free in or before an epoch.
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

struct Arena : HostObject {
  Arena(BlockPool& owner, const KnownStream& for_stream);
  BlockPool& pool;
  const KnownStream stream;
  const bool in_ranges;                // as the pool's memory
  SplitRules rules;                    // of the pool
  std::atomic<bool> has_ended{false};  // its stream has ended: no request comes
  std::uint32_t requests = 0;          // under way, some with the lock released: while there are any, the arena stays
  std::uint32_t epoch = 1;             // of blocks that become free now; the page heap advances it with the StreamClock
  FreeBins bins;
  Reach reach;  // of the current search for idle pages

  // Returns whether the handle names the arena's stream, as far as the host knows: the stream is not known to have ended,
  // and the handle does not name another stream in each thread.
  bool is_known_as(Stream handle) const {
    return handle == stream.handle && !is_per_thread(handle) && !has_ended.load(std::memory_order_relaxed);
  }
  bool may_use(const Block& block) const { return reach.covers(block.bin.epoch); }
};

class BlockPool {
 public:
  // `owner` is null for the default pools.
  BlockPool(PoolKind kind, PoolId id, PrivatePool* owner, Growth* where = nullptr, bool has_ranges = false)
      : growth(where), in_ranges(has_ranges), kind_(kind), id_(id), owner_(owner) {}

  PoolKind kind() const { return kind_; }
  PoolId id() const { return id_; }
  PrivatePool* owner() const { return owner_; }

  // Returns the stream's arena, or null if it has none yet.
  Arena* look_up(const KnownStream& stream) {
    if (last_key_ == stream.key) [[likely]]
      return last_;
    Arena* const found = find(stream.key);
    if (found != nullptr) remember(*found);
    return found;
  }
  // Requires: the stream has no arena yet.
  Arena& add(const KnownStream& stream);
  // Returns whether the handle names the stream of the arena that was requested last.
  bool last_is_of(Stream handle) const { return last_key_ == StreamKey::of_handle(handle); }
  Arena* last() const { return last_; }
  Arena* find(StreamKey key) const {
    const auto found = by_stream_.find(key);
    return found != by_stream_.end() ? found->second : nullptr;
  }
  const Vector<std::unique_ptr<Arena>>& arenas() const { return arenas_; }
  // Removes the arenas for which leaves(arena) is true. Requires: these have no block, live or free; it does not throw.
  template <typename Leaves>
  void remove_if(Leaves&& leaves);

  // The source of its memory, and whether that lies in ranges of addresses (BlockHeap::add_range) and not in segments. Neither
  // changes once the pool has an arena.
  Growth* growth;
  bool in_ranges = false;
  // Sets the rules by which its blocks may be split.
  void set_rules(const SplitRules& rules);
  // The number of searches made while garbage collection is on: the clock that measures the age of free blocks.
  std::uint64_t clock = 0;

 private:
  void remember(Arena& arena) {
    last_key_ = arena.stream.key;
    last_ = &arena;
  }

  PoolKind kind_;
  PoolId id_;
  PrivatePool* owner_;
  SplitRules rules_;
  StreamKey last_key_ = StreamKey::none();
  Arena* last_ = nullptr;  // the arena of last_key_, if that is a stream
  Vector<std::unique_ptr<Arena>> arenas_;
  HashMap<StreamKey, Arena*> by_stream_;
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

using PoolPair = std::array<const BlockPool*, 2>;  // an owner's small and large blocks

CACHALOT_END
