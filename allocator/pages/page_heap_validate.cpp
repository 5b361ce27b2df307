// The checks of a PageHeap: its invariants, and what IdlePages finds.
#include "base/format.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

namespace {

std::string validate_seams(const PageHeap& pages, const BlockHeap& heap) {
  const Seams& seams = pages.seams();
  auto noted = seams.all().begin();
  for (const auto& [address, head] : heap.segments()) {
    for (const Block* block = head; pages.holds(address) && !block->is_edge(); block = block->next) {
      if (!seams.is_seam(*block)) continue;
      if (noted == seams.all().end() || noted->address != block->address || noted->block != block)
        return formatted("the seam at {:#x} is not noted", block->address);
      ++noted;
    }
  }
  if (noted != seams.all().end()) return formatted("a seam is noted at {:#x}, where none is", noted->address);
  return "";
}

std::string validate_gaps(const PageHeap& pages, const BlockHeap& heap) {
  for (const auto& [base, range] : pages.ranges()) {
    Address end = base;
    std::size_t runs = 0;
    for (std::size_t i = 0; i < range.gaps.count(); ++i) {
      const auto& [address, gap] = range.gaps[i];
      if (address < end || !gap->is_gap() || gap->address != address)
        return formatted("no gap is at {:#x}, where one is noted", address);
      runs += address != end ? 1 : 0;
      end = gap->end();
    }
    runs += end != range.end() ? 1 : 0;
    const auto first = heap.segments().lower_bound(base);
    const auto last = heap.segments().lower_bound(range.end());
    if (static_cast<std::size_t>(std::distance(first, last)) != runs)
      return formatted("{} runs lie between the gaps of the range at {:#x}", runs, base);
  }
  return "";
}

}  // namespace

std::string PageHeap::validate(std::size_t moving) const {
  if (std::string broken = validate_gaps(*this, heap_); !broken.empty()) return broken;
  if (std::string broken = validate_seams(*this, heap_); !broken.empty()) return broken;
  std::size_t in_blocks = 0;
  for (const auto& [address, head] : heap_.segments()) {
    const PageRange* range = range_of(address);
    if (range == nullptr) continue;
    const Block* block = head;
    while (!block->is_edge()) block = block->next;
    const Address end = block->is_gap() ? block->address : range->end();
    if (address % page_bytes() != 0 || end % page_bytes() != 0)
      return formatted("run [{:#x}, {:#x}) is not made of pages", address, end);
    for (Address slot = address; slot < end; slot += page_bytes()) {
      const PageId page = shown_at(*range, slot);
      if (page == 0) return formatted("no page is mapped at {:#x}, where blocks are", slot);
      if (pages_.page(page).home != slot) return formatted("page {} is not at home at {:#x}", page, slot);
      in_blocks += page_bytes();
    }
  }
  std::size_t in_handles = 0;
  std::size_t views = 0;
  for (HandleId id = 0; id < pages_.handle_ids(); ++id) {
    const PhysicalHandle& handle = pages_.handle(id);
    in_handles += pages_.bytes(handle);
    views += handle.views.size();
    for (const View& view : handle.views) {
      std::uint32_t homed = 0;
      const PageRange* range = range_of(view.address);
      for (std::uint32_t i = 0; i < handle.pages; ++i) {
        const Address slot = view.address + i * page_bytes();
        if (range == nullptr || shown_at(*range, slot) != handle.first + i)
          return formatted("view {:#x} of handle {} is not in the table of its range", view.address, id);
        homed += pages_.page(handle.first + i).home == slot ? 1 : 0;
      }
      if (homed != view.homed) return formatted("view {:#x} counts {} pages, not {}", view.address, view.homed, homed);
    }
  }
  if (in_handles != in_blocks + moving) return formatted("handles hold {} bytes, blocks {}", in_handles, in_blocks);
  if (views != pages_.live_views()) return formatted("{} views are counted, {} there", pages_.live_views(), views);
  return "";
}

// What IdlePages finds, in a search of every other arena that goes on with all, against every block of the pools' ranges.
std::string PageHeap::validate_idle_pages(const PoolPair& pools) const {
  for (const BlockPool* pool : pools) {
    const auto& arenas = pool->arenas();
    for (std::size_t i = 0; i < arenas.size(); ++i)
      arenas[i]->reach = {i % 2 == 0 ? Reach::Kind::none : Reach::Kind::all};
  }
  IdlePages found(*this);
  found.find(pools);
  reach_everything(pools);
  found.find_more();
  std::size_t idle_pages = 0;
  for (const auto& [address, head] : heap_.segments()) {
    const PageRange* range = range_of(address);
    if (range == nullptr || range->owner != pools[0]->owner()) continue;
    const Block* block = head;
    for (Address slot = address; !block->is_edge(); slot += page_bytes()) {
      bool is_idle = true;
      for (; !block->is_edge() && block->address < slot + page_bytes(); block = block->next) {
        is_idle = is_idle && block->is_free();
        if (block->end() > slot + page_bytes()) break;
      }
      idle_pages += is_idle ? 1 : 0;
      if (found.has(shown_at(*range, slot)) != is_idle)
        return formatted("the page at {:#x} is{} idle, unlike what was found", slot, is_idle ? "" : " not");
    }
  }
  if (idle_pages != found.count()) return formatted("{} pages are idle, {} were found", idle_pages, found.count());
  return "";
}

CACHALOT_END
