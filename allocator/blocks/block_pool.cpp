#include "blocks/block_pool.h"

#include "base/format.h"

CACHALOT_BEGIN

void FreeBins::add_group(std::size_t group) const noexcept { groups_[group] = std::make_unique<Group>(); }

void FreeBins::remove_leaf(BinLeaf& leaf, std::size_t slot) { bin_for(slot).remove_leaf(leaf, nodes_); }

Block* FreeBins::largest() const {
  sort_newest_in();
  if (empty()) return nullptr;
  const std::size_t group = highest_bit(occupied_.groups());
  const SortedBlocks blocks((*groups_[group])[highest_bit(occupied_.bins(group))].last_leaf());
  return *(blocks.end() - 1);
}

std::string FreeBins::validate() const {
  std::string broken = validate_order();
  for (std::size_t group = 0; group < SizeBins::kGroups && broken.empty(); ++group) broken = validate_group(group);
  return broken;
}

std::string FreeBins::validate_order() const {
  const Block* last = nullptr;
  std::string broken;
  for_each([&](const Block& block) {
    if (!block.is_free()) broken = formatted("free bins hold block {:#x}, which is not free", block.address);
    if (last != nullptr && !precedes(*last, block))
      broken = formatted("free bins are out of order at block {:#x}", block.address);
    last = &block;
  });
  return broken;
}

std::string FreeBins::validate_group(std::size_t group) const {
  if (((occupied_.groups() >> group & 1) != 0) != (occupied_.bins(group) != 0))
    return formatted("bit of bin group {} is wrong", group);
  for (std::size_t b = 0; groups_[group] != nullptr && b < SizeBins::kPerGroup; ++b) {
    const Bin& bin = (*groups_[group])[b];
    const std::size_t slot = group * SizeBins::kPerGroup + b;
    const BinLeaf* const first = bin.first_leaf();
    const bool occupied = first != nullptr && first->count != 0;
    if (occupied_.has(slot) != occupied) return formatted("bit of bin {}.{} is wrong", group, b);
    if (occupied && SizeBins::slot_for(first->blocks[0]->size()) != slot)
      return formatted("block {:#x} is in the wrong bin", first->blocks[0]->address);
    if (const std::string broken = bin.validate(); !broken.empty()) return formatted("bin {}.{}: {}", group, b, broken);
  }
  return "";
}

std::size_t FreeBins::metadata_bytes() const {
  std::size_t bytes = 0;
  for (const auto& group : groups_) bytes += group ? sizeof(Group) : 0;
  return bytes + nodes_.metadata_bytes();
}

Arena::Arena(BlockPool& owner, const KnownStream& for_stream)
    : pool(owner), stream(for_stream), in_ranges(owner.in_ranges) {}

void BlockPool::set_rules(const SplitRules& rules) {
  rules_ = rules;
  for (const auto& arena : arenas_) arena->rules = rules;
}

Arena& BlockPool::add(const KnownStream& stream) {
  arenas_.reserve(arenas_.size() + 1);
  auto arena = std::make_unique<Arena>(*this, stream);
  arena->rules = rules_;
  by_stream_.emplace(stream.key, arena.get());
  arenas_.push_back(std::move(arena));
  remember(*arenas_.back());
  return *last_;
}

CACHALOT_END
