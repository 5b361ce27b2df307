// The free blocks of one arena, for exact best fit: the smallest that fits, and among equals the lowest address (the
// order of PyTorch's set of free blocks).
//
// Sizes fall into bins, 64 an octave, found by two levels of bitmap; below 64 KiB a bin holds a single size. Bins are in
// order, a bin's blocks are not: they sit in a leaf of kSlots places, each with its key, (size, address) in one word. To
// put a block in is to append it, to take it out is to move the last into its place, to find the best is to look at all
// keys: no step of it branches on what is in the leaf, and none looks at another block's memory. A bin of more blocks
// than a leaf takes is a B+ tree of leaves, each with its stretch of keys. So most operations touch two or three
// lines, and one of 65,536 equal holes costs a logarithm.
//
// The block that came last is kept aside, out of the bins, until the next one comes: very often it is the one taken or
// merged next.
//
// Leaves and tree nodes are kept for reuse, as are groups of bins: the steady state allocates nothing.
// Invariants: (1) a bit is set exactly for each bin and group that holds blocks; (2) of the leaves of a tree none is
// empty, and their stretches ascend; (3) the newest block is in no bin.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/power_of_two.h"
#include "blocks/block.h"

namespace cachalot {

struct BinTreeNode;

// A few of a bin's free blocks, in no order. Four cache lines; most leaves are a quarter full and use two.
struct BinLeaf {
  static constexpr std::uint32_t kSlots = 14;
  static constexpr std::uint32_t kFirstLine = 6;  // slots whose keys are in the first line

  std::uint32_t count;
  BinTreeNode* parent;         // nullptr: the bin's only leaf
  std::uint64_t keys[kSlots];  // kNoKey beyond count
  Block* blocks[kSlots];
  BinLeaf* prev;  // neighbours in the tree
  BinLeaf* next;
};
static_assert(sizeof(BinLeaf) == 256);

class FreeBins {
 public:
  // Blocks are smaller than this, and addresses than 2^kAddressBits.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 40;
  static constexpr int kAddressBits = 48;

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

  // The first block in (size, address) order of at least `bytes` > 0; nullptr when there is none. Leaves it in.
  CACHALOT_FAST_PATH Block* best_fit(std::size_t bytes) const {
    if (bytes >= kMaxBytes) [[unlikely]]
      return nullptr;
    bytes = round_up(bytes, kBlockGranularity);
    // What was freed last and fits exactly is the best there is, unless its bin holds more.
    if (newest_ != nullptr && newest_->size_and_flags == bytes && !occupied(slot_for(bytes))) return newest_;
    Block* block = best_fit_in_bins(bytes);
    if (newest_ == nullptr) return block;
    if (block == nullptr) return newest_->size_and_flags < bytes ? nullptr : newest_;
    const bool fits = newest_->size_and_flags >= bytes;
    return choose(as_number(fits & before(*newest_, *block)), newest_, block);
  }

  Block* largest() const;
  bool empty() const { return occupied_groups_ == 0 && newest_ == nullptr; }

  // Calls visit(Block&) in (size, address) order; visit must not change the bins.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for_each_of_at_least(kBlockGranularity, visit);
  }
  // The same for blocks of at least `bytes` > 0.
  template <typename Visit>
  void for_each_of_at_least(std::size_t bytes, Visit&& visit) const {
    settle();
    if (bytes >= kMaxBytes) return;
    const std::size_t first = slot_for(round_up(bytes, kBlockGranularity));
    for (std::size_t group = first / kBinsPerOctave; group < kGroups; ++group) {
      if (!groups_[group]) continue;
      const std::size_t first_bin = group == first / kBinsPerOctave ? first % kBinsPerOctave : 0;
      for (std::size_t bin = first_bin; bin < kBinsPerOctave; ++bin) {
        for (const BinLeaf* leaf = (*groups_[group])[bin].first; leaf != nullptr; leaf = leaf->next) {
          for (Block* block : Ordered(*leaf)) {
            if (block->size() >= bytes) visit(*block);
          }
        }
      }
    }
  }

  // Calls visit(Block&), in no order, for each block in which a multiple of `unit` lies: every one of that size, few of the
  // smaller ones. Keys tell which, so that no other block is looked at. visit must not change the bins.
  template <typename Visit>
  void for_each_across(PowerOfTwo unit, Visit&& visit) const {
    if (newest_ != nullptr && unit.down(newest_->end() - 1) >= newest_->address) visit(*newest_);
    const std::size_t first_of_unit = slot_for(unit.bytes());
    for (std::uint64_t groups = occupied_groups_; groups != 0; groups &= groups - 1) {
      const std::size_t group = lowest_bit(groups);
      for (std::uint64_t bins = occupied_[group]; bins != 0; bins &= bins - 1) {
        const std::size_t bin = lowest_bit(bins);
        const bool all = group * kBinsPerOctave + bin >= first_of_unit;
        for (const BinLeaf* leaf = (*groups_[group])[bin].first; leaf != nullptr; leaf = leaf->next) {
          for (std::uint32_t i = 0; i < leaf->count; ++i) {
            if (all || lies_across(leaf->keys[i], unit)) visit(*leaf->blocks[i]);
          }
        }
      }
    }
  }

  std::string validate() const;
  std::size_t metadata_bytes() const;

 private:
  static constexpr std::size_t kBinsPerOctave = 64;
  static constexpr std::size_t kSmallestOctave = 9;  // 512 B
  static constexpr std::size_t kGroups = 64;
  static constexpr std::size_t kFirstOfManySizes = 7 * kBinsPerOctave;  // 64 KiB: below, a bin is not wider than 512 B
  // From here on bins are 512 MiB wide, so that sizes within one differ in 20 bits (of 512 B).
  static constexpr std::size_t kWideBytes = std::size_t{1} << 36;
  static constexpr std::size_t kWidestBin = std::size_t{1} << 29;
  static constexpr std::size_t kWideSlot = (36 - kSmallestOctave) * kBinsPerOctave;
  static_assert(kWideSlot + (kMaxBytes - kWideBytes) / kWidestBin <= kGroups * kBinsPerOctave);

  struct Bin {
    BinLeaf* first = nullptr;     // nullptr only before the first block
    BinTreeNode* root = nullptr;  // of more than one leaf
  };
  using Group = std::array<Bin, kBinsPerOctave>;

  static constexpr std::uint64_t kPlaceBits = 15;
  static constexpr std::uint64_t kNoKey = ~std::uint64_t{0};
  // Orders the blocks of one bin: 20 bits of the size, which tell apart those of any bin, then 39 of the address, both in
  // units of 512 B; then four bits for the place in the leaf. Below 2^63. Free blocks have no flags beside the size.
  static std::uint64_t key_of(std::size_t bytes, Address address) {
    static_assert(BinLeaf::kSlots <= kPlaceBits + 1 && kAddressBits == 39 + 9);
    return ((bytes << (39 + 4 - 9)) & ~(std::uint64_t{1} << 63)) | address >> (9 - 4);
  }
  static std::uint64_t key_of(const Block& block) { return key_of(block.size_and_flags, block.address); }
  // Whether a multiple of `unit` lies in a block of this key, which is smaller.
  static bool lies_across(std::uint64_t key, PowerOfTwo unit) {
    const Address address = key << (9 - 4) >> 9 << 9 & ((std::uint64_t{1} << kAddressBits) - 1);
    const std::size_t bytes = key >> (39 + 4) << 9;
    return unit.down(address + bytes - 1) >= address;
  }

  // As one number: one comparison without a branch.
  __extension__ using SizeAndAddress = unsigned __int128;
  static SizeAndAddress size_and_address(const Block& block) {
    return SizeAndAddress{block.size_and_flags} << 64 | block.address;
  }
  static bool before(const Block& a, const Block& b) { return size_and_address(a) < size_and_address(b); }

  // group x kBinsPerOctave + bin: the octave, and the six bits below the leading one.
  static std::size_t slot_for(std::size_t bytes) {
    if (bytes >= kWideBytes) [[unlikely]]
      return kWideSlot + (bytes - kWideBytes) / kWidestBin;
    const std::size_t octave = highest_bit(bytes);
    return octave * kBinsPerOctave + (bytes >> (octave - 6)) - (kSmallestOctave + 1) * kBinsPerOctave;
  }
  CACHALOT_FAST_PATH Bin& bin_for(std::size_t slot) const {
    auto& group = groups_[slot / kBinsPerOctave];
    if (group == nullptr) [[unlikely]]
      add_group(slot / kBinsPerOctave);
    return (*group)[slot % kBinsPerOctave];
  }
  bool occupied(std::size_t slot) const { return (occupied_[slot / kBinsPerOctave] >> slot % kBinsPerOctave & 1) != 0; }
  // No branch: whether a bin or group is empty cannot be predicted.
  CACHALOT_FAST_PATH void mark(std::size_t slot, bool occupied) const {
    const std::size_t group = slot / kBinsPerOctave;
    std::uint64_t& bins = occupied_[group];
    bins = with_bit(bins, slot % kBinsPerOctave, occupied);
    occupied_groups_ = with_bit(occupied_groups_, group, bins != 0);
  }
  static std::uint64_t with_bit(std::uint64_t word, std::size_t bit, bool value) {
    return (word & ~(std::uint64_t{1} << bit)) | std::uint64_t{value} << bit;
  }

  CACHALOT_FAST_PATH void sort_in(Block& block) const {
    const std::size_t slot = slot_for(block.size_and_flags);
    const std::uint64_t key = key_of(block);
    Bin& bin = bin_for(slot);
    BinLeaf* leaf = bin.root == nullptr ? bin.first : &leaf_for(bin, key);
    if (leaf == nullptr || leaf->count == BinLeaf::kSlots) [[unlikely]]
      leaf = &make_room(bin, leaf, key);
    append(*leaf, block, key);
    block.bin.slot = static_cast<std::uint16_t>(slot);
    mark(slot, true);
  }
  static void append(BinLeaf& leaf, Block& block, std::uint64_t key) {
    const std::uint32_t index = leaf.count++;
    leaf.keys[index] = key | index;
    leaf.blocks[index] = &block;
    block.bin.leaf = &leaf;
    block.bin.place = static_cast<std::uint16_t>(index);
  }

  CACHALOT_FAST_PATH void sort_out(Block& block) {
    BinLeaf& leaf = *block.bin.leaf;
    const std::uint32_t index = block.bin.place;
    const std::uint32_t last = --leaf.count;
    Block* const moved = leaf.blocks[last];
    leaf.blocks[index] = moved;
    leaf.keys[index] = (leaf.keys[last] & ~kPlaceBits) | index;
    leaf.keys[last] = kNoKey;
    moved->bin.place = static_cast<std::uint16_t>(index);
    const bool of_tree = leaf.parent != nullptr;  // then another leaf holds blocks
    const std::size_t slot = block.bin.slot;
    mark(slot, as_number((last != 0) | of_tree));
    if (as_number((last == 0) & of_tree)) [[unlikely]]
      remove_leaf(leaf, slot);
  }

  // Puts the newest block into its bin: what looks at all blocks in order begins with this. It changes where a block
  // is kept, not which blocks there are.
  void settle() const {
    if (newest_ != nullptr) sort_in(*newest_);
    newest_ = nullptr;
  }

  CACHALOT_FAST_PATH Block* best_fit_in_bins(std::size_t bytes) const {
    const std::size_t slot = slot_for(bytes);
    const std::size_t group = slot / kBinsPerOctave;
    std::uint64_t candidates = occupied_[group] >> slot % kBinsPerOctave;
    if (candidates != 0) {
      const Bin* bin = &(*groups_[group])[slot % kBinsPerOctave];
      // The request's own bin may have only smaller ones, if it holds several sizes; larger bins serve with any.
      const std::uint64_t own_of_many_sizes = candidates & std::uint64_t{slot >= kFirstOfManySizes};
      const std::uint64_t key = key_of(bytes, 0) & -own_of_many_sizes;
      if (Block* block = first_of(bin[lowest_bit(candidates)], key)) [[likely]]
        return block;
      candidates &= ~std::uint64_t{1};
      if (candidates != 0) return first_of(bin[lowest_bit(candidates)], 0);
    }
    const std::uint64_t larger_groups = occupied_groups_ >> group >> 1 << group << 1;
    if (larger_groups == 0) return nullptr;
    const std::size_t larger = lowest_bit(larger_groups);
    return first_of((*groups_[larger])[lowest_bit(occupied_[larger])], 0);
  }

  // The block with the smallest key of at least `key`; nullptr when there is none.
  CACHALOT_FAST_PATH static Block* first_of(const Bin& bin, std::uint64_t key) {
    if (as_number((bin.root != nullptr) & (key != 0))) [[unlikely]]
      return first_of_tree(bin, key);
    return first_of(*bin.first, key);
  }
  // The place of the nearest key comes out with it: it is the key's last bits. Smaller keys and kNoKey wrap around to
  // distances of at least 2^63, so one comparison does for all.
  CACHALOT_FAST_PATH static Block* first_of(const BinLeaf& leaf, std::uint64_t key) {
    std::uint64_t nearest = least_distance<0, BinLeaf::kFirstLine>(leaf, key);
    if (leaf.count > BinLeaf::kFirstLine)
      nearest = lesser(nearest, least_distance<BinLeaf::kFirstLine, BinLeaf::kSlots>(leaf, key));
    return nearest >> 63 != 0 ? nullptr : leaf.blocks[nearest & kPlaceBits];
  }
  // Of the keys in some places from `key` on. Two minima, which the processor finds at the same time.
  template <std::uint32_t kBegin, std::uint32_t kEnd>
  CACHALOT_FAST_PATH static std::uint64_t least_distance(const BinLeaf& leaf, std::uint64_t key) {
    static_assert((kEnd - kBegin) % 2 == 0);
    std::uint64_t even = kNoKey;
    std::uint64_t odd = kNoKey;
    for (std::uint32_t i = kBegin; i < kEnd; i += 2) {
      even = lesser(even, leaf.keys[i] - key);
      odd = lesser(odd, leaf.keys[i + 1] - key);
    }
    return lesser(even, odd);
  }

  // Trees of leaves, and room for them (free_bins.cpp).
  void add_group(std::size_t group) const noexcept;
  static BinLeaf& leaf_for(const Bin& bin, std::uint64_t key);
  static Block* first_of_tree(const Bin& bin, std::uint64_t key);
  BinLeaf& make_room(Bin& bin, BinLeaf* leaf, std::uint64_t key) const;
  static std::uint64_t middle_of(const BinLeaf& full);
  BinLeaf& split(Bin& bin, BinLeaf& leaf, std::uint64_t key) const;
  void add_child(Bin& bin, BinTreeNode& parent, const void* after, std::uint64_t low, void* child) const;
  void remove_leaf(BinLeaf& leaf, std::size_t slot);
  void remove_child(Bin& bin, BinTreeNode& parent, const void* child);
  static std::string validate_bin(const Bin& bin);

  // The blocks of a leaf, sorted.
  class Ordered {
   public:
    explicit Ordered(const BinLeaf& leaf);
    Block* const* begin() const { return blocks_; }
    Block* const* end() const { return blocks_ + count_; }

   private:
    Block* blocks_[BinLeaf::kSlots];
    std::uint32_t count_;
  };

  // A leaf or a tree node: they have the same size. Host memory that runs out here, or for a group, ends the program: a
  // free that is half done cannot be taken back.
  void* allocate_node() const noexcept;
  void free_node(void* node) const;
  BinLeaf& new_leaf() const;
  BinTreeNode& new_tree_node(std::uint32_t level) const;

  // mutable for settle.
  mutable Block* newest_ = nullptr;
  mutable std::uint64_t occupied_groups_ = 0;
  mutable std::array<std::uint64_t, kGroups> occupied_{};  // bins, by group
  mutable std::array<std::unique_ptr<Group>, kGroups> groups_;
  struct FreeNode {
    FreeNode* next;
  };
  struct alignas(kCacheLine) NodeMemory {
    std::byte bytes[sizeof(BinLeaf)];
  };
  static constexpr std::size_t kChunkNodes = 16;
  mutable FreeNode* free_nodes_ = nullptr;
  mutable std::vector<std::unique_ptr<NodeMemory[]>> node_chunks_;  // of kChunkNodes
};

}  // namespace cachalot
