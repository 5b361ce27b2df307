// How a PageHeap carries out a plan: pages leave the bins, come home to the window, or return.
#include <algorithm>
#include <utility>

#include "pages/page_heap.h"

CACHALOT_BEGIN

// The block or gap in which a plan's window begins. A run may be long, a window is not, and it has a gap or is near one:
// so from the gaps before it and behind it, whichever is nearer.
Block& PageHeap::first_piece(const BackingPlan& plan) {
  Block* before = plan.range->gaps.last_until(plan.begin);
  Block* behind = plan.range->gaps.at_or_behind(plan.begin);
  if (before == nullptr && behind == nullptr) return first_block(plan.begin);
  while (true) {
    if (before != nullptr) {
      if (plan.begin < before->end()) return *before;
      before = before->next;
    }
    if (behind != nullptr) {
      if (behind->address <= plan.begin) return *behind;
      behind = behind->prev;
    }
  }
}

std::vector<const Block*> PageHeap::blocks_of(const BackingPlan& plan) {
  std::vector<const Block*> blocks;
  for (const Block* block = &first_piece(plan);; block = block->next) {
    if (!block->is_gap()) blocks.push_back(block);
    if (block->end() >= plan.end) break;
  }
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; i < move.count; ++i) {
      const Address home = pages_.page(move.first + i).home;
      for (const Block* block = &first_block(home); block->address < home + page_bytes(); block = block->next) {
        if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
        if (block->end() >= home + page_bytes()) break;
      }
    }
  }
  return blocks;
}

std::vector<PageHeap::VacatedStretch> PageHeap::begin(const BackingPlan& plan) noexcept {
  PageRange& range = *plan.range;
  for (Block* block = &first_piece(plan);; block = block->next) {
    if (!block->is_gap()) {
      block = &isolate(range, *block, std::max(block->address, plan.begin), std::min(block->end(), plan.end));
    }
    if (block->end() >= plan.end) break;
  }

  std::vector<PageHome> homes;
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; i < move.count; ++i) {
      homes.push_back({pages_.page(move.first + i).home, plan.holders.empty() ? nullptr : plan.holders[homes.size()]});
    }
  }
  return vacate_homes(homes);
}

std::vector<PageHeap::VacatedStretch> PageHeap::vacate(HandleId id) noexcept {
  const PhysicalHandle& handle = pages_.handle(id);
  std::vector<PageHome> homes;
  for (std::uint32_t i = 0; i < handle.pages; ++i) homes.push_back({pages_.page(handle.first + i).home, nullptr});
  return vacate_homes(homes);
}

// From the highest address down: what is taken of a block then leaves its lower part, which is the same object, to be the
// holder of others.
std::vector<PageHeap::VacatedStretch> PageHeap::vacate_homes(std::vector<PageHome>& homes) noexcept {
  std::ranges::sort(homes, {}, &PageHome::address);
  std::vector<VacatedStretch> vacated;
  vacated.reserve(homes.size());
  while (!homes.empty()) {
    const Address end = homes.back().address + page_bytes();
    PageRange& range = *range_of(homes.back().address);
    PageHome first = homes.back();
    for (homes.pop_back(); !homes.empty(); homes.pop_back()) {
      const Address before = homes.back().address;
      if (before + page_bytes() != first.address || before < range.base) break;
      first = homes.back();
    }
    Block& holder = first.holder != nullptr ? block_at(*first.holder, first.address) : first_block(first.address);
    claim_stretch(range, holder, first.address, end, [&](Block& part) {
      vacated.push_back({part.arena, part.address, part.size(), part.bin.epoch});
      close(range, part);
    });
  }
  std::ranges::sort(vacated, {}, &VacatedStretch::address);
  return vacated;
}

void PageHeap::move_homes(const BackingPlan& plan, const std::vector<VacatedStretch>& vacated,
                          const std::function<Ticket(const VacatedStretch&)>& ticket_of) {
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; i < move.count; ++i) {
      const Address home = pages_.page(move.first + i).home;
      auto part = std::prev(std::ranges::upper_bound(vacated, home, {}, &VacatedStretch::address));
      for (; part != vacated.end() && part->address < home + page_bytes(); ++part) {
        pages_.remember_use(move.first + i, ticket_of(*part));
      }
      pages_.move_home(move.first + i, move.to + i * page_bytes());
    }
  }
}

Block& PageHeap::finish(const BackingPlan& plan, Arena& arena) noexcept {
  PageRange& range = *plan.range;
  const auto fill = [&](Address at, std::size_t bytes) {
    open(range, *range.gaps.at_or_behind(at), at, at + bytes, arena);
  };
  Block& before = first_piece(plan);
  for (const BackingPlan::Move& move : plan.moves) fill(move.to, move.count * page_bytes());
  for (const BackingPlan::Growth& growth : plan.growths) fill(growth.at, growth.pages * page_bytes());
  Block* block = &block_at(before, plan.begin);
  while (true) {
    block->arena = &arena;
    InactiveSplit change;
    block = &heap_.put_back(*block, change);
    if (!block->next->has(Block::kClaimed)) break;
    block = block->next;
  }
  seams_.look_again(*block);
  return *block;
}

// What it merges with keeps its own last user, too: the later of the two counts.
void PageHeap::reopen(const VacatedStretch& part) noexcept {
  PageRange& range = *range_of(part.address);
  Block& block =
      open(range, *range.gaps.at_or_behind(part.address), part.address, part.address + part.bytes, *part.arena);
  std::uint32_t epoch = part.epoch;
  for (const Block* beside : {block.prev, block.next}) {
    const bool merges = beside->is_free() && beside->arena == part.arena;
    if (merges && Reach::has_reached(beside->bin.epoch, epoch)) epoch = beside->bin.epoch;
  }
  InactiveSplit change;
  Block& merged = heap_.put_back(block, change);
  merged.bin.epoch = epoch;
  seams_.look_again(merged);
}

void PageHeap::undo(const BackingPlan& plan, const std::vector<VacatedStretch>& vacated) noexcept {
  for (const VacatedStretch& part : vacated) reopen(part);
  InactiveSplit change;
  for (Block* block = &first_piece(plan);; block = block->next) {
    if (block->has(Block::kClaimed)) block = &heap_.put_back(*block, change);
    if (block->end() >= plan.end) break;
  }
}

Block& PageHeap::hand_over(Block& block, Address begin, Address end, Arena& arena) {
  const std::uint32_t epoch = block.bin.epoch;
  const bool same_stream = block.arena->stream == arena.stream;
  Block& part = isolate(*range_of(block.address), block, begin, end);
  part.arena = &arena;
  InactiveSplit change;
  Block& merged = heap_.put_back(part, change);
  seams_.look_again(merged);
  if (same_stream && &merged == &part && merged.size() == end - begin) merged.bin.epoch = epoch;
  return merged;
}

CACHALOT_END
