// Leaves of a bin: up to kSlots free blocks each, in no order, with a key beside each that orders them.
//
// To put a block in is to append it, to take it out is to move the last into its place, to find the best is to look at
// all keys: no step of it branches on what is in the leaf, and none looks at another block's memory.
// Invariant: a block knows its leaf and its place there; keys beyond `count` are BinKey::kNone. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bits.h"
#include "base/check.h"
#include "blocks/block.h"

CACHALOT_BEGIN

struct BinTreeNode;

// A BinKey orders the blocks of one bin: 20 bits of the size, which tell apart those of any bin, then 39 of the
// address, both in units of 512 B; then four bits for the place in the leaf. Below 2^63.
struct BinKey {
  static constexpr int kAddressBits = 48;
  static constexpr std::uint64_t kPlaceBits = 15;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  static std::uint64_t of(std::size_t bytes, Address address) {
    static_assert(kAddressBits == 39 + 9);
    return ((bytes << (39 + 4 - 9)) & ~(std::uint64_t{1} << 63)) | address >> (9 - 4);
  }
  // Free blocks have no flags beside the size.
  static std::uint64_t of(const Block& block) { return of(block.size_and_flags, block.address); }
};

// Whether `a` comes before `b` in (size, address) order, for free blocks: one comparison of numbers, without a branch.
inline bool precedes(const Block& a, const Block& b) {
  __extension__ using SizeAndAddress = unsigned __int128;
  const auto number = [](const Block& block) { return SizeAndAddress{block.size_and_flags} << 64 | block.address; };
  return number(a) < number(b);
}

// Four cache lines; most leaves are a quarter full and use two.
struct BinLeaf {
  static constexpr std::uint32_t kSlots = 14;
  static constexpr std::uint32_t kFirstLine = 6;  // slots whose keys are in the first line
  static_assert(kSlots <= BinKey::kPlaceBits + 1);

  std::uint32_t count;
  BinTreeNode* parent;         // nullptr: the bin's only leaf
  std::uint64_t keys[kSlots];  // kNone beyond count
  Block* blocks[kSlots];
  BinLeaf* prev;  // neighbours in the tree
  BinLeaf* next;

  void append(Block& block, std::uint64_t key) {
    const std::uint32_t index = count++;
    keys[index] = key | index;
    blocks[index] = &block;
    block.bin.leaf = this;
    block.bin.place = static_cast<std::uint16_t>(index);
  }

  // Returns how many blocks are left.
  CACHALOT_FAST_PATH std::uint32_t remove(std::uint32_t index) {
    const std::uint32_t last = --count;
    Block* const moved = blocks[last];
    blocks[index] = moved;
    keys[index] = (keys[last] & ~BinKey::kPlaceBits) | index;
    keys[last] = BinKey::kNone;
    moved->bin.place = static_cast<std::uint16_t>(index);
    return last;
  }

  void remove_all() {
    count = 0;
    std::fill_n(keys, kSlots, BinKey::kNone);
  }

  // Returns the block with the smallest key of at least `key`; nullptr: there is none. The place of the nearest key
  // comes out with it: it is the key's last bits. Smaller keys and kNone wrap around to distances of at least 2^63, so
  // one comparison does for all.
  CACHALOT_FAST_PATH Block* first_from(std::uint64_t key) const {
    std::uint64_t nearest = least_distance<0, kFirstLine>(key);
    if (count > kFirstLine) nearest = lesser(nearest, least_distance<kFirstLine, kSlots>(key));
    return nearest >> 63 != 0 ? nullptr : blocks[nearest & BinKey::kPlaceBits];
  }

 private:
  // Of the keys in some places from `key` on. Two minima, which the processor finds at the same time.
  template <std::uint32_t kBegin, std::uint32_t kEnd>
  CACHALOT_FAST_PATH std::uint64_t least_distance(std::uint64_t key) const {
    static_assert((kEnd - kBegin) % 2 == 0);
    std::uint64_t even = BinKey::kNone;
    std::uint64_t odd = BinKey::kNone;
    for (std::uint32_t i = kBegin; i < kEnd; i += 2) {
      even = lesser(even, keys[i] - key);
      odd = lesser(odd, keys[i + 1] - key);
    }
    return lesser(even, odd);
  }
};
static_assert(sizeof(BinLeaf) == 256);

// The blocks of a leaf in (size, address) order.
class SortedBlocks {
 public:
  explicit SortedBlocks(const BinLeaf& leaf);
  Block* const* begin() const { return blocks_; }
  Block* const* end() const { return blocks_ + count_; }

 private:
  Block* blocks_[BinLeaf::kSlots];
  std::uint32_t count_;
};

CACHALOT_END
