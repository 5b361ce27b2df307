#include "blocks/bin_leaf.h"

CACHALOT_BEGIN

SortedBlocks::SortedBlocks(const BinLeaf& leaf) : count_(leaf.count) {
  std::copy_n(leaf.blocks, count_, blocks_);
  std::sort(blocks_, blocks_ + count_, [](const Block* a, const Block* b) { return precedes(*a, *b); });
}

CACHALOT_END
