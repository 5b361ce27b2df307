#include "guard/freed_blocks.h"
#include "base/format.h"

#include <iterator>
#include <utility>

CACHALOT_BEGIN

void FreedBlocks::add(GuardedBlock block, const GuardCall& call) {
  block.freed = call;
  if (blocks_.size() == kKept) erase(blocks_.find(by_free_.begin()->second));
  const Address begin = block.heap_address();
  const auto known = by_free_.emplace(call.number, begin).first;
  try {
    blocks_.emplace(begin, std::move(block));
  } catch (...) {
    by_free_.erase(known);
    throw;
  }
}

void FreedBlocks::forget(const GuardedBlock& block) {
  const Address begin = block.heap_address();
  const Address end = begin + block.footprint();
  for (auto next = first_behind(begin); next != blocks_.end() && next->first < end;) erase(next++);
}

const GuardedBlock* FreedBlocks::find(Address at) const {
  auto block = blocks_.upper_bound(at);
  if (block == blocks_.begin()) return nullptr;
  --block;
  return block->second.contains(at) ? &block->second : nullptr;
}

// The first that ends behind `at`.
FreedBlocks::Blocks::iterator FreedBlocks::first_behind(Address at) {
  const auto block = blocks_.upper_bound(at);
  if (block != blocks_.begin() && std::prev(block)->second.contains(at)) return std::prev(block);
  return block;
}

void FreedBlocks::erase(Blocks::iterator block) {
  by_free_.erase(block->second.freed->number);
  blocks_.erase(block);
}

std::string FreedBlocks::validate() const {
  if (by_free_.size() != blocks_.size()) {
    return formatted("guard: {} freed blocks are remembered by address, {} by their free", blocks_.size(),
                     by_free_.size());
  }
  Address end = 0;
  for (const auto& [begin, block] : blocks_) {
    if (begin < end) return formatted("guard: the freed block at {:#x} overlaps the one before", block.address);
    end = begin + block.footprint();
  }
  return "";
}

std::size_t FreedBlocks::metadata_bytes() const {
  return blocks_.size() * (sizeof(Blocks::value_type) + sizeof(decltype(by_free_)::value_type));
}

CACHALOT_END
