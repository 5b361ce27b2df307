// A Bin holds the free blocks of one stretch of sizes: in one leaf, or where they are more, in a B+ tree of leaves,
// each with its stretch of keys. So one of 65,536 equal holes costs a logarithm.
//
// Invariant: of the leaves of a tree none is empty, and their stretches ascend. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/bits.h"
#include "base/check.h"
#include "blocks/bin_leaf.h"
#include "blocks/bin_nodes.h"

CACHALOT_BEGIN

class Bin {
 public:
  // The first of its leaves, which are linked; nullptr only before the first block.
  const BinLeaf* first_leaf() const { return first_; }
  // Requires: a leaf.
  const BinLeaf& last_leaf() const;

  CACHALOT_FAST_PATH void insert(Block& block, std::uint64_t key, BinNodes& nodes) {
    BinLeaf* leaf = root_ == nullptr ? first_ : &leaf_for(key);
    if (leaf == nullptr || leaf->count == BinLeaf::kSlots) [[unlikely]]
      leaf = &make_room(leaf, key, nodes);
    leaf->append(block, key);
  }
  // Removes an empty leaf of a tree.
  void remove_leaf(BinLeaf& leaf, BinNodes& nodes);

  // Returns the block with the smallest key of at least `key`; nullptr when there is none. Requires: a leaf.
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
  BinTreeNode* root_ = nullptr;  // of more than one leaf
};

CACHALOT_END
