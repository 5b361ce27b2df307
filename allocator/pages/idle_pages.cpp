#include "pages/idle_pages.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "pages/page_heap.h"

CACHALOT_BEGIN

void reach_everything(const PoolPair& pools) {
  for (const BlockPool* pool : pools) {
    for (const auto& arena : pool->arenas()) arena->reach = {Reach::Kind::all};
  }
}

void IdlePages::clear() {
  words_.assign(heap_.pages().page_ids() / kBits + 1, 0);
  count_ = 0;
  range_ = nullptr;
  holders_.clear();
  beyond_reach_.clear();
  seams_beyond_reach_.clear();
}

void IdlePages::find(const PoolPair& pools) {
  clear();
  for (const BlockPool* pool : pools) {
    for (const auto& arena : pool->arenas()) {
      arena->bins.for_each_of_at_least(heap_.pages().grid(), [&](Block& block) {
        if (arena->reach.covers(block.bin.epoch)) {
          add_block(block);
        } else {
          beyond_reach_.push_back(&block);
        }
      });
    }
  }
  Address slot = 0;
  for (const BlockAt& seam : heap_.seams().all()) {
    const Address its_slot = heap_.pages().grid().down(seam.address);
    const bool is_free = seam.block->is_free() && seam.block->prev->is_free();
    if (its_slot != slot && is_free && seam.block->arena->pool.owner() == pools[0]->owner())
      add_page_with_seam(*seam.block);
    slot = its_slot;
  }
}

void IdlePages::find_more() {
  for (Block* block : std::exchange(seams_beyond_reach_, {})) add_page_with_seam(*block);
  for (Block* block : std::exchange(beyond_reach_, {})) {
    if (block->arena->may_use(*block)) add_block(*block);
  }
}

// The pages that lie in it.
void IdlePages::add_block(Block& block) {
  const PowerOfTwo grid = heap_.pages().grid();
  const Address begin = grid.up(block.address);
  const Address end = grid.down(block.end());
  if (begin >= end) return;
  holders_.push_back({block.address, &block});
  const PageRange& range = range_of(begin);
  const PageId* shown = range.shown.data() + grid.whole_in(begin - range.base);
  const PageId* const last = range.shown.data() + grid.whole_in(end - range.base);
  while (shown != last) {
    const PageId first = *shown;
    std::uint32_t pages = 1;
    while (++shown != last && *shown == first + pages) ++pages;
    add(first, pages);
  }
}

// The page of the first seam in it is idle if all its blocks are free.
void IdlePages::add_page_with_seam(Block& behind_seam) {
  const PowerOfTwo grid = heap_.pages().grid();
  const Address slot = grid.down(behind_seam.address);
  Block* block = behind_seam.prev;
  while (block->is_free() && block->address > slot) block = block->prev;
  Block& first = *block;
  bool is_reached = true;
  for (; block->is_free(); block = block->next) {
    is_reached = is_reached && block->arena->may_use(*block);
    if (block->end() < slot + grid.bytes()) continue;
    if (!is_reached) return seams_beyond_reach_.push_back(&behind_seam);
    holders_.push_back({first.address, &first});
    return add(heap_.shown_at(range_of(slot), slot), 1);
  }
}

void IdlePages::add(PageId first, std::uint32_t pages) {
  count_ += pages;
  for (std::uint32_t bit = first % kBits; pages != 0; bit = 0) {
    const std::uint32_t here = std::min(pages, kBits - bit);
    words_[first / kBits] |= (kAll >> (kBits - here)) << bit;
    first += here;
    pages -= here;
  }
}

void IdlePages::find_holders(BackingPlan& plan) {
  plan.holders.clear();
  if (plan.moves.empty()) return;
  std::ranges::sort(holders_, {}, &BlockAt::address);
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; i < move.count; ++i) {
      const Address home = heap_.pages().page(move.first + i).home;
      Block* const last = plan.holders.empty() ? nullptr : plan.holders.back();
      if (last != nullptr && home - last->address < last->size()) {
        plan.holders.push_back(last);
        continue;
      }
      const auto behind = std::ranges::upper_bound(holders_, home, {}, &BlockAt::address);
      plan.holders.push_back(std::prev(behind)->block);
    }
  }
}

// Most often that of the block before.
const PageRange& IdlePages::range_of(Address address) {
  if (range_ == nullptr || address - range_->base >= range_->bytes) range_ = heap_.range_of(address);
  return *range_;
}

CACHALOT_END
