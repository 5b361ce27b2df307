// The inner nodes of a bin's tree of leaves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bits.h"
#include "blocks/bin_leaf.h"

CACHALOT_BEGIN

// A BinTreeNode of a bin's tree has children in the order of their keys. Child i holds the keys from low[i] to below
// low[i + 1]; low[0] is not looked at, nor the end of the last: these are the parent's business. Beyond count, low is
// above every key, so that a search looks at all of it: where it could stop early cannot be predicted.
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
  // Its upper half goes to `empty`, a node of the same level.
  void split_into(BinTreeNode& empty) {
    const std::uint32_t kept = count / 2;
    for (std::uint32_t i = kept; i < count; ++i) empty.insert(i - kept, low[i], children[i]);
    std::fill(low + kept, low + count, kAboveAll);
    count = kept;
  }
};
static_assert(sizeof(BinTreeNode) <= sizeof(BinLeaf));

CACHALOT_END
