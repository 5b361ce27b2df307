#include "pages/physical_pages.h"

#include <algorithm>
#include <utility>

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
  handle.views.assign(1, View{.address = address, .homed = pages, .last_uses = {}});
  free_ids_.pop_back();
  handle.memory = memory;
  handle.pages = pages;
  handle.first = free_pages_[pages].back();
  free_pages_[pages].pop_back();
  for (std::uint32_t i = 0; i < pages; ++i) pages_[handle.first + i] = {id, i, address + i * page_bytes(), 0};
  ++live_views_;
  return id;
}

void PhysicalPages::remove(HandleId id) {
  PhysicalHandle& handle = handles_[id];
  CACHALOT_ASSERT(handle.views.empty());
  free_pages_[handle.pages].push_back(handle.first);
  free_ids_.push_back(id);
  handle = {};
}

MemoryHandle PhysicalPages::put_to_sleep(HandleId id) {
  CACHALOT_ASSERT(handles_[id].views.size() == 1);
  return std::exchange(handles_[id].memory, MemoryHandle{0});
}

void PhysicalPages::wake(HandleId id, MemoryHandle memory) {
  CACHALOT_ASSERT(handles_[id].is_asleep());
  handles_[id].memory = memory;
}

void PhysicalPages::add_view(HandleId id, Address address) {
  handles_[id].views.push_back({.address = address, .homed = 0, .last_uses = {}});
  ++live_views_;
}

void PhysicalPages::remove_view(HandleId id, Address address) {
  std::vector<View>& views = handles_[id].views;
  const auto view = std::find_if(views.begin(), views.end(), [&](const View& v) { return v.address == address; });
  CACHALOT_ASSERT(view != views.end());
  views.erase(view);
  --live_views_;
}

View& PhysicalPages::find_view(PhysicalHandle& handle, Address address) const {
  const auto holds = [&](const View& view) { return address - view.address < bytes(handle); };
  return *std::find_if(handle.views.begin(), handle.views.end(), holds);
}

const View& PhysicalPages::view_at(PageId id, Address address) const {
  PhysicalHandle& handle = const_cast<PhysicalHandle&>(handle_of(id));
  return find_view(handle, address);
}

void PhysicalPages::remember_use(PageId id, const Ticket& use) {
  std::vector<Ticket>& uses = find_view(handles_[pages_[id].handle], pages_[id].home).last_uses;
  const auto known =
      std::find_if(uses.begin(), uses.end(), [&](const Ticket& ticket) { return ticket.clock == use.clock; });
  if (known == uses.end()) {
    uses.push_back(use);
  } else if (Reach::has_reached(use.epoch, known->epoch)) {
    *known = use;
  }
}

std::set<const StreamClock*> PhysicalPages::forget_done_uses() {
  std::set<const StreamClock*> clocks;
  for (PhysicalHandle& handle : handles_) {
    for (View& view : handle.views) {
      std::erase_if(view.last_uses, [](const Ticket& use) { return use.is_done(); });
      for (const Ticket& use : view.last_uses) clocks.insert(use.clock);
    }
  }
  return clocks;
}

void PhysicalPages::move_home(PageId id, Address address) {
  PhysicalPage& page = pages_[id];
  PhysicalHandle& handle = handles_[page.handle];
  --find_view(handle, page.home).homed;
  page.home = address;
  ++find_view(handle, address).homed;
}

bool PhysicalPages::may_unmap(const View& view) { return view.homed == 0 && is_unused(view); }

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

CACHALOT_END
