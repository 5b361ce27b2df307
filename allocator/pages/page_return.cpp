// How memory leaves a PageHeap: idle handles that go back to the device, and the handles of pools that sleep.
#include <algorithm>

#include "pages/page_heap.h"

CACHALOT_BEGIN

std::vector<HandleId> PageHeap::idle_handles(const PoolPair& pools) const {
  reach_everything(pools);
  IdlePages pages(*this);
  pages.find(pools);
  std::vector<HandleId> idle;
  pages.for_each_run(pages_, [&](const IdleRun& run) {
    if (run.is_whole()) idle.push_back(run.handle);
  });
  const auto home = [&](HandleId id) { return pages_.page(pages_.page_of(id, 0)).home; };
  std::sort(idle.begin(), idle.end(), [&](HandleId a, HandleId b) { return home(a) < home(b); });
  return idle;
}

void PageHeap::claim_handles(const std::vector<HandleId>& idle) {
  for (const HandleId id : idle) {
    for_each_home(id, [&](PageRange& range, Address begin, Address end) {
      claim_stretch(range, first_block(begin), begin, end, [](Block&) {});
    });
  }
}

// Each stretch of addresses at which pages of a handle are at home.
void PageHeap::for_each_home(HandleId id, const std::function<void(PageRange&, Address, Address)>& visit) {
  const PhysicalHandle handle = pages_.handle(id);
  for (std::uint32_t i = 0; i < handle.pages;) {
    const Address begin = pages_.page(handle.first + i).home;
    Address end = begin;
    while (i < handle.pages && pages_.page(handle.first + i).home == end) {
      end += page_bytes();
      ++i;
    }
    visit(*range_of(begin), begin, end);
  }
}

void PageHeap::forget_memory(HandleId id) {
  for_each_home(id, [&](PageRange& range, Address begin, Address end) {
    while (begin < end) {
      Block& block = first_block(begin);
      begin = block.end();
      close(range, block);
    }
  });
}

void PageHeap::put_back_idle(HandleId id) {
  for_each_home(id, [&](PageRange&, Address begin, Address end) {
    InactiveSplit change;
    for (Block* block = &first_block(begin); block->has(Block::kClaimed) && block->address < end; block = block->next) {
      block = &heap_.put_back(*block, change);
    }
  });
}

// --- sleep ------------------------------------------------------------------------------------------------------------

std::vector<HandleId> PageHeap::handles_of(const PrivatePool& owner) const {
  std::vector<HandleId> handles;
  for (HandleId id = 0; id < pages_.handle_ids(); ++id) {
    const std::vector<View>& views = pages_.handle(id).views;
    if (!views.empty() && range_of(views.front().address)->owner == &owner) handles.push_back(id);
  }
  const auto address = [this](HandleId id) { return pages_.handle(id).views.front().address; };
  std::sort(handles.begin(), handles.end(), [&](HandleId a, HandleId b) { return address(a) < address(b); });
  return handles;
}

std::vector<PageHeap::Run> PageHeap::runs_of(const std::vector<HandleId>& by_address) const {
  std::vector<Run> runs;
  for (const HandleId id : by_address) {
    const Address at = pages_.handle(id).views.front().address;
    const bool joins =
        !runs.empty() && runs.back().begin + runs.back().bytes == at && range_of(runs.back().begin) == range_of(at);
    if (!joins) runs.push_back({at, 0, {}});
    runs.back().bytes += pages_.bytes(pages_.handle(id));
    runs.back().handles.push_back(id);
  }
  return runs;
}

std::vector<PageHeap::Stretch> PageHeap::used_stretches(HandleId id) {
  std::vector<Stretch> stretches;
  const Address begin = pages_.handle(id).views.front().address;
  const Address end = begin + pages_.bytes(pages_.handle(id));
  for (const Block* block = &first_block(begin); !block->is_edge() && block->address < end; block = block->next) {
    if (block->is_unused()) continue;
    const Address from = std::max(block->address, begin);
    const std::size_t bytes = std::min(block->end(), end) - from;
    const bool joins = !stretches.empty() && stretches.back().begin + stretches.back().bytes == from;
    if (!joins) stretches.push_back({from, 0});
    stretches.back().bytes += bytes;
  }
  return stretches;
}

std::size_t PageHeap::asleep_bytes(Address begin, Address end) const {
  const PageRange& range = *range_of(begin);
  std::size_t bytes = 0;
  for (Address slot = begin; slot < end; slot += page_bytes()) {
    if (pages_.handle_of(shown_at(range, slot)).is_asleep()) bytes += page_bytes();
  }
  return bytes;
}

CACHALOT_END
