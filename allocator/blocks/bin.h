// A Bin holds the free blocks within one range of sizes: in a single leaf, or in a B+ tree of leaves if they do not fit
// into one. So a search among 65,536 equal holes takes logarithmic time.
//
// Invariant: no leaf of a tree is empty, and the key ranges of the leaves ascend. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "blocks/block.h"

CACHALOT_BEGIN

struct BinTreeNode;

// A BinKey orders the blocks of one bin. From the highest bits down it has 20 bits of the size, which tell the sizes of
// one bin apart, and 39 bits of the address, both in units of 512 B; then four bits for the place in the leaf. It is
// below 2^63.
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

// Returns whether the free block `a` comes before `b` in (size, address) order. One comparison of numbers, without a
// branch.
inline bool precedes(const Block& a, const Block& b) {
  __extension__ using SizeAndAddress = unsigned __int128;
  const auto number = [](const Block& block) { return SizeAndAddress{block.size_and_flags} << 64 | block.address; };
  return number(a) < number(b);
}

// A BinLeaf has up to kSlots free blocks of a bin, in no order, and a key for each that orders them.
//
// An insertion appends, a removal moves the last block into the empty place, and a search compares all keys: no step
// branches on the content of the leaf, and none reads the memory of another block. A leaf is four cache lines; most
// leaves are a quarter full and use two.
// Invariant: a block knows its leaf and its place there; keys beyond `count` are BinKey::kNone. Not thread-safe.
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

  // Returns the block with the smallest key of at least `key`, or null if there is none. The last bits of the nearest
  // distance are the place of its block. Smaller keys and kNone wrap around to distances of at least 2^63, so one
  // comparison handles them all.
  CACHALOT_FAST_PATH Block* first_from(std::uint64_t key) const {
    std::uint64_t nearest = least_distance<0, kFirstLine>(key);
    if (count > kFirstLine) nearest = lesser(nearest, least_distance<kFirstLine, kSlots>(key));
    return nearest >> 63 != 0 ? nullptr : blocks[nearest & BinKey::kPlaceBits];
  }

 private:
  // Returns the least distance from `key` up to a key in [kBegin, kEnd). It has two minima, which the processor computes
  // in parallel.
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

// A BinTreeNode is an inner node of a bin's tree. Its children are in the order of their keys: child i holds the keys in
// [low[i], low[i + 1]). The parent bounds the first child below and the last child above, so low[0] is not read. Beyond
// count, low is above every key, so that a search can compare all of it: a branch that stops early is mispredicted.
struct BinTreeNode {
  static constexpr std::uint32_t kChildren = 14;
  static constexpr std::uint64_t kAboveAll = ~std::uint64_t{0};

  std::uint32_t count;
  std::uint32_t level;  // 0: its children are leaves
  BinTreeNode* parent;
  std::uint64_t low[kChildren];
  void* children[kChildren];

  BinTreeNode& inner(std::uint32_t i) const { return *static_cast<BinTreeNode*>(children[i]); }
  BinLeaf& leaf(std::uint32_t i) const { return *static_cast<BinLeaf*>(children[i]); }
  std::uint32_t index_of(const void* child) const {
    return static_cast<std::uint32_t>(std::find(children, children + count, child) - children);
  }
  std::uint32_t child_for(std::uint64_t key) const {
    std::uint32_t i = 0;
    for (std::uint32_t j = 1; j < kChildren; ++j) i += as_number(low[j] <= key);
    return i;
  }
  void adopt(void* child) const {
    if (level == 0) {
      static_cast<BinLeaf*>(child)->parent = const_cast<BinTreeNode*>(this);
    } else {
      static_cast<BinTreeNode*>(child)->parent = const_cast<BinTreeNode*>(this);
    }
  }
  void insert(std::uint32_t i, std::uint64_t key, void* child) {
    std::copy_backward(low + i, low + count, low + count + 1);
    std::copy_backward(children + i, children + count, children + count + 1);
    low[i] = key;
    children[i] = child;
    ++count;
    adopt(child);
  }
  void erase(std::uint32_t i) {
    std::copy(low + i + 1, low + count, low + i);
    std::copy(children + i + 1, children + count, children + i);
    low[--count] = kAboveAll;
  }
  // Moves the upper half of the children to `empty`, a node of the same level.
  void split_into(BinTreeNode& empty) {
    const std::uint32_t kept = count / 2;
    for (std::uint32_t i = kept; i < count; ++i) empty.insert(i - kept, low[i], children[i]);
    std::fill(low + kept, low + count, kAboveAll);
    count = kept;
  }
};
static_assert(sizeof(BinTreeNode) <= sizeof(BinLeaf));

// BinNodes owns the leaves and tree nodes of all bins of one arena, which are of one size. It keeps them for reuse, so
// that the steady state allocates nothing. Not thread-safe.
//
// If host memory runs out here, the program ends: a free that is half done cannot be undone.
class BinNodes {
 public:
  BinNodes() = default;
  BinNodes(const BinNodes&) = delete;
  BinNodes& operator=(const BinNodes&) = delete;

  BinLeaf& new_leaf();
  // `level` is as in BinTreeNode.
  BinTreeNode& new_tree_node(std::uint32_t level);
  // `node` is a leaf or a tree node.
  void free_node(void* node);

  std::size_t metadata_bytes() const { return chunks_.size() * kChunkNodes * sizeof(Memory); }

 private:
  struct FreeNode {
    FreeNode* next;
  };
  struct alignas(kCacheLine) Memory : HostObject {
    std::byte bytes[sizeof(BinLeaf)];
  };
  static constexpr std::size_t kChunkNodes = 16;

  void* allocate() noexcept;

  FreeNode* free_ = nullptr;
  Vector<std::unique_ptr<Memory[]>> chunks_;  // of kChunkNodes
};

class Bin {
 public:
  // Returns the first of the linked leaves; null only before the first block.
  const BinLeaf* first_leaf() const { return first_; }
  // Requires: the bin has a leaf.
  const BinLeaf& last_leaf() const;

  CACHALOT_FAST_PATH void insert(Block& block, std::uint64_t key, BinNodes& nodes) {
    BinLeaf* leaf = root_ == nullptr ? first_ : &leaf_for(key);
    if (leaf == nullptr || leaf->count == BinLeaf::kSlots) [[unlikely]]
      leaf = &make_room(leaf, key, nodes);
    leaf->append(block, key);
  }
  // Removes an empty leaf of a tree.
  void remove_leaf(BinLeaf& leaf, BinNodes& nodes);

  // Returns the block with the smallest key of at least `key`, or null if there is none. Requires: the bin has a leaf.
  CACHALOT_FAST_PATH Block* first_from(std::uint64_t key) const {
    if (as_number((root_ != nullptr) & (key != 0))) [[unlikely]]
      return first_of_tree_from(key);
    return first_->first_from(key);
  }

  std::string validate() const;

 private:
  BinLeaf& leaf_for(std::uint64_t key) const;
  Block* first_of_tree_from(std::uint64_t key) const;
  BinLeaf& make_room(BinLeaf* leaf, std::uint64_t key, BinNodes& nodes);
  BinLeaf& split(BinLeaf& leaf, std::uint64_t key, BinNodes& nodes);
  void add_child(BinTreeNode& parent, const void* after, std::uint64_t low, void* child, BinNodes& nodes);
  void remove_child(BinTreeNode& parent, const void* child, BinNodes& nodes);

  BinLeaf* first_ = nullptr;
  BinTreeNode* root_ = nullptr;  // null if the bin has at most one leaf
};

CACHALOT_END
