#include "blocks/free_bins.h"

#include <fmt/format.h>

namespace cachalot {

void FreeBins::add_group(std::size_t group) const { groups_[group] = std::make_unique<Group>(); }

void FreeBins::append(Bin& bin, Block& block) {
  block.links = {bin.tail, nullptr};
  (bin.tail ? bin.tail->links.right : bin.head) = &block;
  bin.tail = &block;
  ++bin.listed;
}

void FreeBins::insert_ordered(Bin& bin, Block& block) {
  if (before(*bin.tail, block)) {
    if (bin.overflow == nullptr && bin.listed < kListed) {
      append(bin, block);
    } else {
      insert_in_treap(bin.overflow, block);
    }
    return;
  }
  Block* next = bin.head;
  while (before(*next, block)) next = next->links.right;
  block.links = {next->links.left, next};
  (next->links.left ? next->links.left->links.right : bin.head) = &block;
  next->links.left = &block;
  if (++bin.listed > kListed) {
    Block& last = *bin.tail;
    bin.tail = last.links.left;
    bin.tail->links.right = nullptr;
    --bin.listed;
    insert_in_treap(bin.overflow, last);
  }
}

// The list ran empty: move the smallest of the treap over, half a list, so that the next insert below finds room.
void FreeBins::refill(Bin& bin) {
  while (bin.overflow != nullptr && bin.listed < kListed / 2) append(bin, pop_first(bin.overflow));
}

// A treap's shape is that of a search tree built in order of priority; a hash of the block's own address serves, and
// needs no storage.
std::uint64_t FreeBins::priority(const Block& block) {
  return (reinterpret_cast<std::uintptr_t>(&block) / sizeof(Block)) * 0x9E3779B97F4A7C15u;
}

Block* FreeBins::first_in_treap(Block* root, std::size_t bytes) {
  Block* found = nullptr;
  while (root != nullptr) {
    if (root->size() >= bytes) {
      found = root;
      root = root->links.left;
    } else {
      root = root->links.right;
    }
  }
  return found;
}

void FreeBins::insert_in_treap(Block*& root, Block& block) {
  const std::uint64_t rank = priority(block);
  Block** link = &root;
  while (*link != nullptr && priority(**link) >= rank) {
    link = before(block, **link) ? &(*link)->links.left : &(*link)->links.right;
  }
  // Split what hangs here into the blocks before and after the new one, which takes its place.
  Block* rest = *link;
  *link = &block;
  Block** smaller = &block.links.left;
  Block** larger = &block.links.right;
  while (rest != nullptr) {
    if (before(*rest, block)) {
      *smaller = rest;
      smaller = &rest->links.right;
      rest = rest->links.right;
    } else {
      *larger = rest;
      larger = &rest->links.left;
      rest = rest->links.left;
    }
  }
  *smaller = nullptr;
  *larger = nullptr;
}

void FreeBins::erase_from_treap(Block*& root, Block& block) {
  Block** link = &root;
  while (*link != &block) link = before(block, **link) ? &(*link)->links.left : &(*link)->links.right;
  *link = merge(block.links.left, block.links.right);
}

Block* FreeBins::merge(Block* left, Block* right) {
  Block* root = nullptr;
  Block** link = &root;
  while (left != nullptr && right != nullptr) {
    if (priority(*left) >= priority(*right)) {
      *link = left;
      link = &left->links.right;
      left = left->links.right;
    } else {
      *link = right;
      link = &right->links.left;
      right = right->links.left;
    }
  }
  *link = left != nullptr ? left : right;
  return root;
}

Block& FreeBins::pop_first(Block*& root) {
  Block** link = &root;
  while ((*link)->links.left != nullptr) link = &(*link)->links.left;
  Block& first = **link;
  *link = first.links.right;
  return first;
}

Block* FreeBins::largest() const {
  settle();
  if (empty()) return nullptr;
  const std::size_t group = highest_bit(occupied_groups_);
  const Bin& bin = groups_[group]->bins[highest_bit(occupied_[group])];
  if (bin.overflow == nullptr) return bin.tail;
  Block* block = bin.overflow;
  while (block->links.right != nullptr) block = block->links.right;
  return block;
}

std::string FreeBins::validate() const {
  const Block* last = nullptr;
  std::string broken;
  for_each([&](const Block& block) {
    if (!block.is_free()) broken = fmt::format("free bins hold block {:#x}, which is not free", block.address);
    if (last != nullptr && !before(*last, block))
      broken = fmt::format("free bins are out of order at block {:#x}", block.address);
    last = &block;
  });
  if (!broken.empty()) return broken;
  for (std::size_t g = 0; g < kGroups; ++g) {
    const Group* group = groups_[g].get();
    if (((occupied_groups_ >> g & 1) != 0) != (occupied_[g] != 0))
      return fmt::format("bit of bin group {} is wrong", g);
    for (std::size_t b = 0; group != nullptr && b < kBinsPerOctave; ++b) {
      const Bin& bin = group->bins[b];
      if (((occupied_[g] >> b & 1) != 0) != (bin.listed != 0)) return fmt::format("bit of bin {}.{} is wrong", g, b);
      if (bin.listed == 0 && bin.overflow != nullptr) return fmt::format("bin {}.{} overflows but lists nothing", g, b);
      std::uint32_t listed = 0;
      for (const Block* block = bin.listed != 0 ? bin.head : nullptr; block != nullptr; block = block->links.right) {
        if (slot_for(block->size()) != g * kBinsPerOctave + b)
          return fmt::format("block {:#x} is in the wrong bin", block->address);
        ++listed;
      }
      if (listed != bin.listed || listed > kListed)
        return fmt::format("bin {}.{} lists {} blocks, not {}", g, b, listed, bin.listed);
    }
  }
  return "";
}

std::size_t FreeBins::metadata_bytes() const {
  std::size_t bytes = 0;
  for (const auto& group : groups_) bytes += group ? sizeof(Group) : 0;
  return bytes;
}

}  // namespace cachalot
