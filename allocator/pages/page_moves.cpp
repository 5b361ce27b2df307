// How a PageHeap carries out a plan: pages leave the bins, come home to the window, or return.
#include <algorithm>
#include <utility>

#include "pages/page_heap.h"

namespace cachalot {

// The block or gap in which a plan's window begins. A run may be long, a window is not: so back from the window's first
// gap. One of nothing but free blocks has none: then from the next gap there is, unless the range ends without.
Block& PageHeap::first_piece(const BackingPlan& plan) {
  Block* piece = find_gap(*plan.range, plan.begin);
  if (piece == nullptr) return first_block(plan.begin);
  while (piece->address > plan.begin) piece = piece->prev;
  return *piece;
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

  std::vector<Address> homes;
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; i < move.count; ++i) homes.push_back(pages_.page(move.first + i).home);
  }
  return vacate_homes(std::move(homes));
}

std::vector<PageHeap::VacatedStretch> PageHeap::vacate(HandleId id) noexcept {
  const PhysicalHandle& handle = pages_.handle(id);
  std::vector<Address> homes;
  for (std::uint32_t i = 0; i < handle.pages; ++i) homes.push_back(pages_.page(handle.first + i).home);
  return vacate_homes(std::move(homes));
}

std::vector<PageHeap::VacatedStretch> PageHeap::vacate_homes(std::vector<Address> homes) noexcept {
  std::sort(homes.begin(), homes.end());
  std::vector<VacatedStretch> vacated;
  for (std::size_t i = 0; i < homes.size();) {
    const Address begin = homes[i];
    Address end = begin;
    while (i < homes.size() && homes[i] == end && range_of(begin) == range_of(end)) {
      end += page_bytes();
      ++i;
    }
    PageRange& home = *range_of(begin);
    claim_stretch(home, begin, end, [&](Block& part) {
      vacated.push_back({part.arena, part.address, part.size(), part.bin.epoch});
      close(home, part);
    });
  }
  return vacated;
}

// Free blocks of [begin, end), cut to it.
void PageHeap::claim_stretch(PageRange& range, Address begin, Address end, const std::function<void(Block&)>& visit) {
  while (begin < end) {
    Block& holder = first_block(begin);
    const Address part_end = std::min(end, holder.end());
    visit(isolate(range, holder, begin, part_end));
    begin = part_end;
  }
}

void PageHeap::move_homes(const BackingPlan& plan, const std::vector<VacatedStretch>& vacated,
                          const std::function<Ticket(const VacatedStretch&)>& ticket_of) {
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; i < move.count; ++i) {
      const Address home = pages_.page(move.first + i).home;
      auto part =
          std::prev(std::upper_bound(vacated.begin(), vacated.end(), home,
                                     [](Address address, const VacatedStretch& l) { return address < l.address; }));
      for (; part != vacated.end() && part->address < home + page_bytes(); ++part) {
        pages_.remember_use(move.first + i, ticket_of(*part));
      }
      pages_.move_home(move.first + i, move.to + i * page_bytes());
    }
  }
}

Block& PageHeap::finish(const BackingPlan& plan, Arena& arena) noexcept {
  PageRange& range = *plan.range;
  const auto fill = [&](Address at, std::size_t bytes) { open(range, *find_gap(range, at), at, at + bytes, arena); };
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
  Block& block = open(range, *find_gap(range, part.address), part.address, part.address + part.bytes, *part.arena);
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

}  // namespace cachalot
