#include "kernels/arena_compaction.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "cachalot/out_of_memory.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

// --- Holes -----------------------------------------------------------------------------------------------------------

void Holes::add(Address address, std::size_t bytes) {
  if (bytes == 0) return;
  by_address_.emplace(address, bytes);
  sizes_.insert(bytes);
}

bool Holes::take(Address address, std::size_t bytes) {
  const auto next = by_address_.upper_bound(address);
  if (next == by_address_.begin()) return false;
  const auto [begin, size] = *std::prev(next);
  if (address + bytes > begin + size) return false;
  const Address end = begin + size;
  remove(std::prev(next));
  add(begin, address - begin);
  add(address + bytes, end - (address + bytes));
  return true;
}

void Holes::give_back(Address address, std::size_t bytes) {
  const auto after = by_address_.find(address + bytes);
  if (after != by_address_.end()) {
    bytes += after->second;
    remove(after);
  }
  const auto next = by_address_.upper_bound(address);
  if (next != by_address_.begin() && std::prev(next)->first + std::prev(next)->second == address) {
    address = std::prev(next)->first;
    bytes += std::prev(next)->second;
    remove(std::prev(next));
  }
  add(address, bytes);
}

void Holes::remove(ByAddress::const_iterator hole) {
  sizes_.erase(sizes_.find(hole->second));
  by_address_.erase(hole);
}

// --- what there is ---------------------------------------------------------------------------------------------------

ArenaCompaction::ArenaCompaction(RelocatableBlocks& blocks, const std::vector<const SegmentSnapshot*>& segments)
    : blocks_(blocks) {
  for (const SegmentSnapshot* segment : segments) add_units(*segment);
  for (const SegmentSnapshot* segment : segments) {
    for (const BlockSnapshot& block : segment->blocks) add_block(block);
  }
}

// Pages, where memory comes and goes by them.
void ArenaCompaction::add_units(const SegmentSnapshot& segment) {
  const Address end = segment.address + segment.total_size;
  const std::size_t page = blocks_.allocator().device(blocks_.device())->properties().page_bytes;
  for (Address begin = segment.address; begin < end;) {
    const Address next = segment.is_expandable ? std::min(end, round_up(begin + 1, page)) : end;
    units_[begin].bytes = next - begin;
    begin = next;
  }
}

template <typename Visit>
void ArenaCompaction::for_each_unit(Address address, std::size_t bytes, Visit&& visit) {
  for (auto unit = std::prev(units_.upper_bound(address)); unit != units_.end() && unit->first < address + bytes;
       ++unit)
    visit(unit->first, unit->second);
}

// nullptr: it must stay.
RelocatableBlock* ArenaCompaction::movable(const BlockSnapshot& block) {
  RelocatableBlock* const ours =
      block.state == BlockSnapshot::State::active_allocated ? blocks_.find(block.address) : nullptr;
  if (ours == nullptr) return nullptr;
  const auto [known, is_new] = captures_.try_emplace(ours->stream, false);
  if (is_new) {
    known->second = blocks_.allocator().device(blocks_.device())->capture_status(ours->stream).capturing;
  }
  return known->second ? nullptr : ours;
}

void ArenaCompaction::add_block(const BlockSnapshot& block) {
  if (block.state == BlockSnapshot::State::inactive) return holes_.add(block.address, block.size);
  RelocatableBlock* const ours = movable(block);
  for_each_unit(block.address, block.size, [&](Address begin, Unit& unit) {
    unit.used += std::min(begin + unit.bytes, block.address + block.size) - std::max(begin, block.address);
    unit.to_move += block.size;
    unit.is_ours = unit.is_ours && ours != nullptr;
    unit.blocks.push_back(ours);
  });
}

// --- what is to be done ----------------------------------------------------------------------------------------------

// The emptiest first. A unit that is empty already is no place to move to either.
std::vector<ArenaCompaction::Unit*> ArenaCompaction::choose_leaving() {
  std::vector<Unit*> leaving;
  std::size_t free_elsewhere = 0;
  for (auto& [address, unit] : units_) {
    unit.leaves = unit.used == 0;
    if (unit.leaves) continue;
    free_elsewhere += unit.bytes - unit.used;
    if (unit.is_ours && unit.to_move < unit.bytes) leaving.push_back(&unit);
  }
  std::ranges::stable_sort(leaving, [](const Unit* a, const Unit* b) {
    return static_cast<double>(a->to_move) / static_cast<double>(a->bytes) <
           static_cast<double>(b->to_move) / static_cast<double>(b->bytes);
  });
  std::erase_if(leaving, [&](Unit* unit) {
    const std::size_t taken = unit->bytes - unit->used + unit->to_move;
    unit->leaves = taken <= free_elsewhere;
    if (unit->leaves) free_elsewhere -= taken;
    return !unit->leaves;
  });
  return leaving;
}

bool ArenaCompaction::is_to_be_left(Address address, std::size_t bytes) {
  bool leaves = false;
  for_each_unit(address, bytes, [&](Address, const Unit& unit) { leaves = leaves || unit.leaves; });
  return leaves;
}

// For all of the unit's blocks, or for none: the largest first.
void ArenaCompaction::find_places(const Unit& unit) {
  std::vector<RelocatableBlock*> blocks = unit.blocks;
  std::erase_if(blocks, [&](const RelocatableBlock* block) { return placed_.contains(block); });
  std::ranges::stable_sort(blocks, std::greater<>(), &RelocatableBlock::bytes);
  const std::size_t moves_before = moves_.size();
  for (RelocatableBlock* block : blocks) {
    if (find_place(*block)) continue;
    while (moves_.size() > moves_before) undo_last_move();
    return;
  }
}

void ArenaCompaction::undo_last_move() {
  const auto& [block, memory] = moves_.back();
  placed_.erase(block);
  holes_.give_back(address_of(memory), blocks_.allocator().allocated_size(memory.get()));
  moves_.pop_back();
}

bool ArenaCompaction::find_place(RelocatableBlock& block) {
  while (Allocation memory = take_free_block(block)) {
    if (is_to_be_left(address_of(memory), blocks_.allocator().allocated_size(memory.get()))) {
      aside_.push_back(std::move(memory));
      continue;
    }
    moves_.push_back({&block, std::move(memory)});
    placed_.insert(&block);
    return true;
  }
  return false;
}

// Null: there is none. Where the arena has grown for it, since others allocate from it, too, that was the last.
Allocation ArenaCompaction::take_free_block(const RelocatableBlock& like) {
  if (!holes_.has_room_for(round_to_block(like.bytes))) return {};
  CachingAllocator& allocator = blocks_.allocator();
  try {
    Allocation memory = allocate_owned(allocator, like.bytes, blocks_.device(), like.stream);
    if (holes_.take(address_of(memory), allocator.allocated_size(memory.get()))) return memory;
  } catch (const OutOfMemory&) {
  }
  holes_ = {};
  return {};
}

// --- and that it is done ---------------------------------------------------------------------------------------------

void ArenaCompaction::run(Kernels& mover, CompactReport& report) {
  for (const Unit* unit : choose_leaving()) find_places(*unit);
  const auto stream_of = [](const Move& move) { return move.block->stream; };
  std::ranges::stable_sort(moves_, std::less<>(), stream_of);
  for (auto first = moves_.begin(); first != moves_.end();) {
    const auto end = std::ranges::upper_bound(first, moves_.end(), stream_of(*first), std::less<>(), stream_of);
    commit(mover, {first, end}, report);
    first = end;
  }
}

// All of one stream. What was handed out in vain, and the old places, are freed when this goes: in the streams' order.
void ArenaCompaction::commit(Kernels& mover, std::span<Move> moves, CompactReport& report) {
  std::vector<BlockMove> copies;
  for (const auto& [block, memory] : moves) {
    copies.push_back({address_of(block->memory), address_of(memory), block->bytes});
  }
  mover.move_blocks(moves.front().block->stream, copies);
  for (auto& [block, memory] : moves) {
    blocks_.relocate(*block, memory);
    report.bytes_moved += block->bytes;
  }
  report.blocks_moved += moves.size();
}

CACHALOT_END
