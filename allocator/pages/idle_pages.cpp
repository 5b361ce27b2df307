#include "pages/idle_pages.h"

#include <utility>

#include "pages/page_heap.h"

namespace cachalot {

void reach_everything(const PoolPair& pools) {
  for (const BlockPool* pool : pools) {
    for (const auto& arena : pool->arenas()) arena->reach = {Reach::Kind::all};
  }
}

void IdlePages::clear() {
  words_.assign(heap_.pages().page_ids() / kBits + 1, 0);
  count_ = 0;
  range_ = nullptr;
  beyond_reach_.clear();
  ends_beyond_reach_.clear();
}

void IdlePages::find(const PoolPair& pools) {
  clear();
  for (const BlockPool* pool : pools) {
    for (const auto& arena : pool->arenas()) {
      arena->bins.for_each_across(heap_.pages().grid(), [&](const Block& block) {
        if (arena->reach.covers(block.bin.epoch)) {
          add_block(block);
        } else {
          beyond_reach_.push_back(&block);
        }
      });
    }
  }
}

void IdlePages::find_more() {
  for (const Block* block : std::exchange(ends_beyond_reach_, {})) add_last_page(*block);
  for (const Block* block : std::exchange(beyond_reach_, {})) {
    if (block->arena->may_use(*block)) add_block(*block);
  }
}

// The pages whose first byte it holds.
void IdlePages::add_block(const Block& block) {
  const PowerOfTwo grid = heap_.pages().grid();
  const Address begin = grid.up(block.address);
  const Address end = grid.down(block.end());
  if (end != block.end() && block.next->is_free()) add_last_page(block);
  if (begin >= end) return;
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

// The page in which the block ends is idle if the blocks behind it are free, up to the end of the page.
void IdlePages::add_last_page(const Block& block) {
  const PowerOfTwo grid = heap_.pages().grid();
  const Address slot = grid.down(block.end());
  for (const Block* next = block.next; next->is_free(); next = next->next) {
    if (!next->arena->may_use(*next)) return ends_beyond_reach_.push_back(&block);
    if (next->end() >= slot + grid.bytes()) return add(heap_.shown_at(range_of(slot), slot), 1);
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

// Most often that of the block before.
const PageRange& IdlePages::range_of(Address address) {
  if (range_ == nullptr || address - range_->base >= range_->bytes) range_ = heap_.range_of(address);
  return *range_;
}

}  // namespace cachalot
