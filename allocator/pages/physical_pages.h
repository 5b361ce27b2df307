// The physical memory of the page heap: handles, the pages they are made of, and where each is mapped.
//
// A handle is what the device gives (Device::create): one or more pages of 2 MiB, and it is always mapped whole, by a
// View. It may have several views at a time. A page has one home: the address at which it counts as memory; through
// all other views it is only a stale alias. A page without a live byte may move home to another view of its handle
// without a driver call, on its own. A handle may be asleep: its pages have homes and views, but no memory.
//
// Invariants: (1) a page's home lies in a view of its handle; (2) View::homed is the number of its pages at home there.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "cachalot/device.h"
#include "pages/stream_clock.h"

CACHALOT_BEGIN

using PageId = std::uint32_t;    // 0: none
using HandleId = std::uint32_t;  // index; ids of handles that are gone come again

struct View {
  Address address;
  std::uint32_t homed = 0;
  std::vector<Ticket> last_uses;  // of pages that left it: to be done before it is unmapped
};

struct PhysicalHandle {
  MemoryHandle memory = 0;  // 0: asleep
  PageId first = 0;
  std::uint32_t pages = 0;  // 0: this id is not in use
  std::vector<View> views;

  bool is_asleep() const { return pages != 0 && memory == 0; }
};

struct PhysicalPage {
  HandleId handle = 0;
  std::uint32_t index = 0;  // in the handle
  Address home = 0;
  // Scratch: the number of the plan that takes it.
  std::uint64_t taken = 0;
};

class PhysicalPages {
 public:
  explicit PhysicalPages(std::size_t page_bytes) : grid_(page_bytes), pages_(1) {}

  std::size_t page_bytes() const { return grid_.bytes(); }
  PowerOfTwo grid() const { return grid_; }
  // A handle mapped at `address`, its pages at home there. Throws std::bad_alloc, having changed nothing.
  HandleId add(MemoryHandle memory, std::uint32_t pages, Address address);
  // A handle without views.
  void remove(HandleId id);
  // The memory goes, and it returns which; or comes.
  MemoryHandle put_to_sleep(HandleId id);
  void wake(HandleId id, MemoryHandle memory);
  void add_view(HandleId id, Address address);
  void remove_view(HandleId id, Address address);
  // The view in which the page is at home was used in its last epoch: the ticket must be done before it is unmapped.
  void remember_use(PageId id, const Ticket& use);
  // Forgets the uses that are done; returns whose the others are.
  std::set<const StreamClock*> forget_done_uses();
  // The page's home is `address`, in a view of its handle, from now on.
  void move_home(PageId id, Address address);

  const PhysicalPage& page(PageId id) const { return pages_[id]; }
  void take(PageId id, std::uint64_t taken) { pages_[id].taken = taken; }
  const PhysicalHandle& handle(HandleId id) const { return handles_[id]; }
  const PhysicalHandle& handle_of(PageId id) const { return handles_[pages_[id].handle]; }
  PageId page_of(HandleId id, std::uint32_t index) const { return handles_[id].first + index; }
  // The view of the page's handle in which it lies at `address`.
  const View& view_at(PageId id, Address address) const;
  static bool may_unmap(const View& view);
  // Whether the work that used pages through the view before they left it is done.
  static bool is_unused(const View& view);
  PageId page_ids() const { return static_cast<PageId>(pages_.size()); }
  HandleId handle_ids() const { return static_cast<HandleId>(handles_.size()); }
  std::size_t live_views() const { return live_views_; }
  // Whether some handle is mapped more than once.
  bool has_aliases() const { return live_views_ > handles_.size() - free_ids_.size(); }
  std::size_t bytes(const PhysicalHandle& handle) const { return handle.pages * page_bytes(); }
  std::size_t metadata_bytes() const;

 private:
  View& find_view(PhysicalHandle& handle, Address address) const;

  PowerOfTwo grid_;
  std::vector<PhysicalPage> pages_;  // page 0 is none
  std::vector<PhysicalHandle> handles_;
  std::vector<HandleId> free_ids_;
  std::vector<std::vector<PageId>> free_pages_;  // first pages of gone handles, by size
  std::size_t live_views_ = 0;
};

CACHALOT_END
