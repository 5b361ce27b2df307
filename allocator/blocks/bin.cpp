#include "blocks/bin.h"

#include <new>

#include "base/format.h"

CACHALOT_BEGIN

SortedBlocks::SortedBlocks(const BinLeaf& leaf) : count_(leaf.count) {
  std::copy_n(leaf.blocks, count_, blocks_);
  std::sort(blocks_, blocks_ + count_, [](const Block* a, const Block* b) { return precedes(*a, *b); });
}

void* BinNodes::allocate() noexcept {
  if (free_ == nullptr) {
    chunks_.push_back(std::make_unique<Memory[]>(kChunkNodes));
    for (std::size_t i = kChunkNodes; i-- > 0;) free_node(&chunks_.back()[i]);
  }
  FreeNode* node = free_;
  free_ = node->next;
  return node;
}

void BinNodes::free_node(void* node) { free_ = new (node) FreeNode{free_}; }

BinLeaf& BinNodes::new_leaf() {
  auto* leaf = new (allocate()) BinLeaf;
  leaf->parent = nullptr;
  leaf->prev = leaf->next = nullptr;
  leaf->remove_all();
  return *leaf;
}

BinTreeNode& BinNodes::new_tree_node(std::uint32_t level) {
  auto* node = new (allocate()) BinTreeNode;
  node->count = 0;
  node->level = level;
  node->parent = nullptr;
  std::fill_n(node->low, BinTreeNode::kChildren, BinTreeNode::kAboveAll);
  return *node;
}

namespace {

// Returns a number that splits the keys of a full leaf: at least one key is below it, and at least one is not, because no
// two are equal. It is their mean: finding the median would cost a dozen mispredicted branches.
std::uint64_t middle_of(const BinLeaf& full) {
  std::uint64_t sum = 0;
  for (const std::uint64_t key : full.keys) sum += key / (BinKey::kPlaceBits + 1);
  return (sum / BinLeaf::kSlots + 1) * (BinKey::kPlaceBits + 1);
}

}  // namespace

// --- finding --------------------------------------------------------------------------------------------------------

BinLeaf& Bin::leaf_for(std::uint64_t key) const {
  const BinTreeNode* node = root_;
  while (node->level != 0) node = &node->inner(node->child_for(key));
  return node->leaf(node->child_for(key));
}

const BinLeaf& Bin::last_leaf() const { return root_ == nullptr ? *first_ : leaf_for(BinKey::kNone - 1); }

// The leaf for `key` may have only smaller keys; then the next leaf has the block.
Block* Bin::first_of_tree_from(std::uint64_t key) const {
  const BinLeaf& leaf = leaf_for(key);
  Block* block = leaf.first_from(key);
  return block == nullptr && leaf.next != nullptr ? leaf.next->first_from(key) : block;
}

// --- growing --------------------------------------------------------------------------------------------------------

// Returns a leaf with room for `key`. `leaf` is full, or null if the bin has no leaf.
BinLeaf& Bin::make_room(BinLeaf* leaf, std::uint64_t key, BinNodes& nodes) {
  if (leaf == nullptr) return *(first_ = &nodes.new_leaf());
  return split(*leaf, key, nodes);
}

// Moves the upper part of a full leaf into a new leaf. Returns the one that `key` belongs to.
BinLeaf& Bin::split(BinLeaf& leaf, std::uint64_t key, BinNodes& nodes) {
  BinTreeNode* parent = leaf.parent;
  if (parent == nullptr) {
    parent = root_ = &nodes.new_tree_node(0);
    parent->insert(0, 0, &leaf);
  }
  BinLeaf& upper = nodes.new_leaf();
  const BinLeaf full = leaf;
  const std::uint64_t low = middle_of(full);
  leaf.remove_all();
  for (std::uint32_t i = 0; i < BinLeaf::kSlots; ++i) {
    choose(as_number(full.keys[i] < low), &leaf, &upper)->append(*full.blocks[i], full.keys[i] & ~BinKey::kPlaceBits);
  }

  upper.prev = &leaf;
  upper.next = leaf.next;
  if (upper.next != nullptr) upper.next->prev = &upper;
  leaf.next = &upper;
  add_child(*parent, &leaf, low, &upper, nodes);
  return key < low ? leaf : upper;
}

// Inserts `child`, whose keys begin at `low`, after the child `after` of `parent`.
void Bin::add_child(BinTreeNode& parent, const void* after, std::uint64_t low, void* child, BinNodes& nodes) {
  if (parent.count < BinTreeNode::kChildren) return parent.insert(parent.index_of(after) + 1, low, child);
  BinTreeNode& upper = nodes.new_tree_node(parent.level);
  parent.split_into(upper);
  BinTreeNode& half = upper.index_of(after) < upper.count ? upper : parent;
  half.insert(half.index_of(after) + 1, low, child);
  if (parent.parent == nullptr) {
    root_ = &nodes.new_tree_node(parent.level + 1);
    root_->insert(0, 0, &parent);
  }
  add_child(*parent.parent, &parent, upper.low[0], &upper, nodes);
}

// --- shrinking ------------------------------------------------------------------------------------------------------

void Bin::remove_leaf(BinLeaf& leaf, BinNodes& nodes) {
  (leaf.prev != nullptr ? leaf.prev->next : first_) = leaf.next;
  if (leaf.next != nullptr) leaf.next->prev = leaf.prev;
  remove_child(*leaf.parent, &leaf, nodes);
  nodes.free_node(&leaf);
}

void Bin::remove_child(BinTreeNode& parent, const void* child, BinNodes& nodes) {
  parent.erase(parent.index_of(child));
  if (parent.count == 0) {  // not the root, which has at least two children
    remove_child(*parent.parent, &parent, nodes);
    nodes.free_node(&parent);
    return;
  }
  while (root_->count == 1) {
    BinTreeNode& old_root = *root_;
    if (old_root.level == 0) {
      root_ = nullptr;
      first_->parent = nullptr;
    } else {
      root_ = &old_root.inner(0);
      root_->parent = nullptr;
    }
    nodes.free_node(&old_root);
    if (root_ == nullptr) return;
  }
}

// --- soundness ------------------------------------------------------------------------------------------------------

std::string Bin::validate() const {
  for (const BinLeaf* leaf = first_; leaf != nullptr; leaf = leaf->next) {
    if ((leaf->parent != nullptr) != (root_ != nullptr)) return "a leaf is not where the tree says";
    if (root_ != nullptr && leaf->count == 0) return "a tree has an empty leaf";
    if (leaf->next != nullptr && leaf->next->prev != leaf) return "leaves are linked wrongly";
    for (std::uint32_t i = 0; i < BinLeaf::kSlots; ++i) {
      if (i >= leaf->count) {
        if (leaf->keys[i] != BinKey::kNone) return "a free place of a leaf has a key";
        continue;
      }
      const Block& block = *leaf->blocks[i];
      if (block.bin.leaf != leaf || block.bin.place != i)
        return formatted("block {:#x} does not know its place", block.address);
      if (leaf->keys[i] != (BinKey::of(block) | i)) return formatted("block {:#x} has another's key", block.address);
      if (root_ != nullptr && &leaf_for(leaf->keys[i]) != leaf)
        return formatted("the tree does not find block {:#x}", block.address);
    }
  }
  return "";
}

CACHALOT_END
