#include "blocks/free_bins.h"
#include "base/format.h"

#include <new>

namespace cachalot {

// Of a bin's tree: children in the order of their keys. Child i holds the keys from low[i] to below low[i + 1]; low[0] is
// not looked at, nor the end of the last: these are the parent's business. Beyond count, low is above every key, so that
// a search looks at all of it: where it could stop early cannot be predicted.
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

// --- memory ---------------------------------------------------------------------------------------------------------

void* FreeBins::allocate_node() const noexcept {
  if (free_nodes_ == nullptr) {
    node_chunks_.push_back(std::make_unique<NodeMemory[]>(kChunkNodes));
    for (std::size_t i = kChunkNodes; i-- > 0;) free_node(&node_chunks_.back()[i]);
  }
  FreeNode* node = free_nodes_;
  free_nodes_ = node->next;
  return node;
}

void FreeBins::free_node(void* node) const { free_nodes_ = new (node) FreeNode{free_nodes_}; }

BinLeaf& FreeBins::new_leaf() const {
  auto* leaf = new (allocate_node()) BinLeaf;
  leaf->count = 0;
  leaf->parent = nullptr;
  leaf->prev = leaf->next = nullptr;
  std::fill_n(leaf->keys, BinLeaf::kSlots, kNoKey);
  return *leaf;
}

BinTreeNode& FreeBins::new_tree_node(std::uint32_t level) const {
  auto* node = new (allocate_node()) BinTreeNode;
  node->count = 0;
  node->level = level;
  node->parent = nullptr;
  std::fill_n(node->low, BinTreeNode::kChildren, BinTreeNode::kAboveAll);
  return *node;
}

void FreeBins::add_group(std::size_t group) const noexcept { groups_[group] = std::make_unique<Group>(); }

// --- trees of leaves ------------------------------------------------------------------------------------------------

BinLeaf& FreeBins::leaf_for(const Bin& bin, std::uint64_t key) {
  const BinTreeNode* node = bin.root;
  while (node->level != 0) node = &node->inner(node->child_for(key));
  return node->leaf(node->child_for(key));
}

// The last leaf that begins at or before `key` may have only smaller ones; then the next has not.
Block* FreeBins::first_of_tree(const Bin& bin, std::uint64_t key) {
  const BinLeaf& leaf = leaf_for(bin, key);
  Block* block = first_of(leaf, key);
  return block == nullptr && leaf.next != nullptr ? first_of(*leaf.next, key) : block;
}

// A leaf with room for `key`, where there is none or `leaf`, which it belongs to, is full.
BinLeaf& FreeBins::make_room(Bin& bin, BinLeaf* leaf, std::uint64_t key) const {
  if (leaf == nullptr) return *(bin.first = &new_leaf());
  return split(bin, *leaf, key);
}

// A number that parts the keys of a full leaf: at least one is below it and at least one is not, for no two are equal.
// Their mean, because finding the median costs a dozen mispredicted branches.
std::uint64_t FreeBins::middle_of(const BinLeaf& full) {
  std::uint64_t sum = 0;
  for (const std::uint64_t key : full.keys) sum += key / (kPlaceBits + 1);
  return (sum / BinLeaf::kSlots + 1) * (kPlaceBits + 1);
}

// The upper part of a full leaf goes to a new one; returns the one that `key` belongs to.
BinLeaf& FreeBins::split(Bin& bin, BinLeaf& leaf, std::uint64_t key) const {
  BinTreeNode* parent = leaf.parent;
  if (parent == nullptr) {
    parent = bin.root = &new_tree_node(0);
    parent->insert(0, 0, &leaf);
  }
  BinLeaf& upper = new_leaf();
  const BinLeaf full = leaf;
  const std::uint64_t low = middle_of(full);
  leaf.count = 0;
  std::fill_n(leaf.keys, BinLeaf::kSlots, kNoKey);
  for (std::uint32_t i = 0; i < BinLeaf::kSlots; ++i) {
    append(*choose(as_number(full.keys[i] < low), &leaf, &upper), *full.blocks[i], full.keys[i] & ~kPlaceBits);
  }

  upper.prev = &leaf;
  upper.next = leaf.next;
  if (upper.next != nullptr) upper.next->prev = &upper;
  leaf.next = &upper;
  add_child(bin, *parent, &leaf, low, &upper);
  return key < low ? leaf : upper;
}

// `child`, whose keys begin at `low`, comes behind the child `after` of `parent`.
void FreeBins::add_child(Bin& bin, BinTreeNode& parent, const void* after, std::uint64_t low, void* child) const {
  if (parent.count < BinTreeNode::kChildren) return parent.insert(parent.index_of(after) + 1, low, child);
  BinTreeNode& upper = new_tree_node(parent.level);
  parent.split_into(upper);
  BinTreeNode& half = upper.index_of(after) < upper.count ? upper : parent;
  half.insert(half.index_of(after) + 1, low, child);
  if (parent.parent == nullptr) {
    bin.root = &new_tree_node(parent.level + 1);
    bin.root->insert(0, 0, &parent);
  }
  add_child(bin, *parent.parent, &parent, upper.low[0], &upper);
}

// An empty leaf of a tree.
void FreeBins::remove_leaf(BinLeaf& leaf, std::size_t slot) {
  Bin& bin = bin_for(slot);
  (leaf.prev != nullptr ? leaf.prev->next : bin.first) = leaf.next;
  if (leaf.next != nullptr) leaf.next->prev = leaf.prev;
  remove_child(bin, *leaf.parent, &leaf);
  free_node(&leaf);
}

void FreeBins::remove_child(Bin& bin, BinTreeNode& parent, const void* child) {
  parent.erase(parent.index_of(child));
  if (parent.count == 0) {  // not the root, which has two children at least
    remove_child(bin, *parent.parent, &parent);
    free_node(&parent);
    return;
  }
  while (bin.root->count == 1) {
    BinTreeNode& old_root = *bin.root;
    if (old_root.level == 0) {
      bin.root = nullptr;
      bin.first->parent = nullptr;
    } else {
      bin.root = &old_root.inner(0);
      bin.root->parent = nullptr;
    }
    free_node(&old_root);
    if (bin.root == nullptr) return;
  }
}

// --- looking at all of it -------------------------------------------------------------------------------------------

FreeBins::Ordered::Ordered(const BinLeaf& leaf) : count_(leaf.count) {
  std::copy_n(leaf.blocks, count_, blocks_);
  std::sort(blocks_, blocks_ + count_, [](const Block* a, const Block* b) { return before(*a, *b); });
}

Block* FreeBins::largest() const {
  settle();
  if (empty()) return nullptr;
  const std::size_t group = highest_bit(occupied_groups_);
  const Bin& bin = (*groups_[group])[highest_bit(occupied_[group])];
  const Ordered blocks(bin.root == nullptr ? *bin.first : leaf_for(bin, kNoKey - 1));
  return *(blocks.end() - 1);
}

std::string FreeBins::validate_bin(const Bin& bin) {
  for (const BinLeaf* leaf = bin.first; leaf != nullptr; leaf = leaf->next) {
    if ((leaf->parent != nullptr) != (bin.root != nullptr)) return "a leaf is not where the tree says";
    if (bin.root != nullptr && leaf->count == 0) return "a tree has an empty leaf";
    if (leaf->next != nullptr && leaf->next->prev != leaf) return "leaves are linked wrongly";
    for (std::uint32_t i = 0; i < BinLeaf::kSlots; ++i) {
      if (i >= leaf->count) {
        if (leaf->keys[i] != kNoKey) return "a free place of a leaf has a key";
        continue;
      }
      const Block& block = *leaf->blocks[i];
      if (block.bin.leaf != leaf || block.bin.place != i)
        return formatted("block {:#x} does not know its place", block.address);
      if (leaf->keys[i] != (key_of(block) | i)) return formatted("block {:#x} has another's key", block.address);
      if (bin.root != nullptr && &leaf_for(bin, leaf->keys[i]) != leaf)
        return formatted("the tree does not find block {:#x}", block.address);
    }
  }
  return "";
}

std::string FreeBins::validate() const {
  const Block* last = nullptr;
  std::string broken;
  for_each([&](const Block& block) {
    if (!block.is_free()) broken = formatted("free bins hold block {:#x}, which is not free", block.address);
    if (last != nullptr && !before(*last, block))
      broken = formatted("free bins are out of order at block {:#x}", block.address);
    last = &block;
  });
  if (!broken.empty()) return broken;
  for (std::size_t g = 0; g < kGroups; ++g) {
    if (((occupied_groups_ >> g & 1) != 0) != (occupied_[g] != 0)) return formatted("bit of bin group {} is wrong", g);
    for (std::size_t b = 0; groups_[g] != nullptr && b < kBinsPerOctave; ++b) {
      const Bin& bin = (*groups_[g])[b];
      const bool occupied = bin.first != nullptr && bin.first->count != 0;
      if (((occupied_[g] >> b & 1) != 0) != occupied) return formatted("bit of bin {}.{} is wrong", g, b);
      if (occupied && slot_for(bin.first->blocks[0]->size()) != g * kBinsPerOctave + b)
        return formatted("block {:#x} is in the wrong bin", bin.first->blocks[0]->address);
      if (broken = validate_bin(bin); !broken.empty()) return formatted("bin {}.{}: {}", g, b, broken);
    }
  }
  return "";
}

std::size_t FreeBins::metadata_bytes() const {
  std::size_t bytes = 0;
  for (const auto& group : groups_) bytes += group ? sizeof(Group) : 0;
  return bytes + node_chunks_.size() * kChunkNodes * sizeof(NodeMemory);
}

}  // namespace cachalot
