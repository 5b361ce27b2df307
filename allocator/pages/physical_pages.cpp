#include "pages/physical_pages.h"

#include <iterator>
#include <utility>

#include "pages/page_heap.h"

CACHALOT_BEGIN

HandleId PhysicalPages::add(MemoryHandle memory, std::uint32_t pages, Address address) {
  if (free_pages_.size() <= pages) free_pages_.resize(pages + 1);
  if (free_pages_[pages].empty()) {
    free_pages_[pages].push_back(static_cast<PageId>(pages_.size()));
    pages_.resize(pages_.size() + pages);
  }
  if (free_ids_.empty()) {
    free_ids_.push_back(static_cast<HandleId>(handles_.size()));
    handles_.emplace_back();
  }
  const HandleId id = free_ids_.back();
  PhysicalHandle& handle = handles_[id];
  handle.views.assign(1, View{.address = address, .last_uses = {}});
  free_ids_.pop_back();
  handle.memory = memory;
  handle.pages = pages;
  handle.home = address;
  handle.first = free_pages_[pages].back();
  free_pages_[pages].pop_back();
  for (std::uint32_t i = 0; i < pages; ++i) pages_[handle.first + i] = {id, i};
  ++live_views_;
  large_handles_ += pages > 1 ? 1 : 0;
  return id;
}

void PhysicalPages::remove(HandleId id) {
  PhysicalHandle& handle = handles_[id];
  CACHALOT_ASSERT(handle.views.empty());
  large_handles_ -= handle.pages > 1 ? 1 : 0;
  free_pages_[handle.pages].push_back(handle.first);
  free_ids_.push_back(id);
  handle = {};
}

MemoryHandle PhysicalPages::take_memory(HandleId id) { return std::exchange(handles_[id].memory, MemoryHandle{0}); }

void PhysicalPages::wake(HandleId id, MemoryHandle memory) {
  CACHALOT_ASSERT(handles_[id].is_asleep() && handles_[id].views.size() == 1);
  handles_[id].memory = memory;
}

void PhysicalPages::add_view(HandleId id, Address address) {
  handles_[id].views.push_back({.address = address, .last_uses = {}});
  ++live_views_;
}

void PhysicalPages::remove_view(HandleId id, Address address) {
  handles_[id].views.erase(find_view(handles_[id], address));
  --live_views_;
}

Vector<View>::iterator PhysicalPages::find_view(PhysicalHandle& handle, Address address) {
  const auto view = std::ranges::find(handle.views, address, &View::address);
  CACHALOT_ASSERT(view != handle.views.end());
  return view;
}

void PhysicalPages::remember_use(HandleId id, const Ticket& use) {
  Vector<Ticket>& uses = find_view(handles_[id], handles_[id].home)->last_uses;
  const auto known =
      std::find_if(uses.begin(), uses.end(), [&](const Ticket& ticket) { return ticket.clock == use.clock; });
  if (known == uses.end()) {
    uses.push_back(use);
  } else if (Reach::has_reached(use.epoch, known->epoch)) {
    *known = use;
  }
}

Set<const StreamClock*> PhysicalPages::forget_done_uses() {
  Set<const StreamClock*> clocks;
  for (PhysicalHandle& handle : handles_) {
    for (View& view : handle.views) {
      std::erase_if(view.last_uses, [](const Ticket& use) { return use.is_done(); });
      for (const Ticket& use : view.last_uses) clocks.insert(use.clock);
    }
  }
  return clocks;
}

bool PhysicalPages::may_unmap(const PhysicalHandle& handle, Address view) const {
  return view != handle.home && is_unused(*std::ranges::find(handle.views, view, &View::address));
}

bool PhysicalPages::is_unused(const View& view) {
  return std::all_of(view.last_uses.begin(), view.last_uses.end(), [](const Ticket& use) { return use.is_done(); });
}

std::size_t PhysicalPages::metadata_bytes() const {
  std::size_t total = pages_.capacity() * sizeof(PhysicalPage) + handles_.capacity() * sizeof(PhysicalHandle);
  for (const PhysicalHandle& handle : handles_) {
    total += handle.views.capacity() * sizeof(View);
    for (const View& view : handle.views) total += view.last_uses.capacity() * sizeof(Ticket);
  }
  return total;
}

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
}

void IdlePages::find(const PoolPair& pools) {
  clear();
  for (const BlockPool* pool : pools) {
    for (const auto& arena : pool->arenas()) {
      arena->bins.for_each_of_at_least(heap_.pages().grid(), [&](Block& block) {
        if (arena->may_use(block)) add_block(block);
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

// The page of the first seam in it is idle if all its blocks are free and within reach.
void IdlePages::add_page_with_seam(Block& behind_seam) {
  const PowerOfTwo grid = heap_.pages().grid();
  const Address slot = grid.down(behind_seam.address);
  Block* block = behind_seam.prev;
  while (block->is_free() && block->address > slot) block = block->prev;
  Block& first = *block;
  for (; block->is_free() && block->arena->may_use(*block); block = block->next) {
    if (block->end() < slot + grid.bytes()) continue;
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
    const Address home = heap_.pages().handle(move.handle).home;
    Block* const last = plan.holders.empty() ? nullptr : plan.holders.back();
    if (last != nullptr && home - last->address < last->size()) {
      plan.holders.push_back(last);
      continue;
    }
    const auto behind = std::ranges::upper_bound(holders_, home, {}, &BlockAt::address);
    plan.holders.push_back(std::prev(behind)->block);
  }
}

// Most often that of the block before.
const PageRange& IdlePages::range_of(Address address) {
  if (range_ == nullptr || address - range_->base >= range_->bytes) range_ = heap_.range_of(address);
  return *range_;
}

CACHALOT_END
