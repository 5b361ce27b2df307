#include "blocks/bin_nodes.h"

#include <new>

#include "blocks/bin_tree_node.h"

CACHALOT_BEGIN

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

CACHALOT_END
