// The physical memory of the page heap: handles, the pages they are made of, and where each is mapped.
//
// A handle is what the device gives (Device::create): one or more pages of 2 MiB, and it is always mapped whole, by a
// View. It may have several views at a time. A handle has one home: the view through which it counts as memory; through
// all other views it is only a stale alias. A handle without a live byte may move home to another of its views without a
// driver call. A handle may be asleep: it has a home, but no memory.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "blocks/block_pool.h"
#include "cachalot/device.h"
#include "pages/stream_clock.h"

CACHALOT_BEGIN

using PageId = std::uint32_t;    // 0: none
using HandleId = std::uint32_t;  // index; ids of handles that are gone come again

struct View {
  Address address;
  Vector<Ticket> last_uses;  // until its handle left it: to be done before it is unmapped
};

struct PhysicalHandle {
  MemoryHandle memory = 0;  // 0: asleep
  PageId first = 0;
  std::uint32_t pages = 0;  // 0: this id is not in use
  Address home = 0;         // of a view
  std::uint64_t taken = 0;  // scratch: the number of the plan that takes it
  Vector<View> views;

  bool is_asleep() const { return pages != 0 && memory == 0; }
};

struct PhysicalPage {
  HandleId handle = 0;
  std::uint32_t index = 0;  // in the handle
};

class PhysicalPages {
 public:
  explicit PhysicalPages(std::size_t page_bytes) : grid_(page_bytes), pages_(1) {}

  std::size_t page_bytes() const { return grid_.bytes(); }
  PowerOfTwo grid() const { return grid_; }
  // A handle mapped at `address`, at home there. Throws std::bad_alloc, having changed nothing.
  HandleId add(MemoryHandle memory, std::uint32_t pages, Address address);
  // A handle without views.
  void remove(HandleId id);
  // The memory goes, and it returns which; or comes.
  MemoryHandle take_memory(HandleId id);
  void wake(HandleId id, MemoryHandle memory);
  void add_view(HandleId id, Address address);
  void remove_view(HandleId id, Address address);
  // The view in which the handle is at home was used in its last epoch: the ticket must be done before it is unmapped.
  void remember_use(HandleId id, const Ticket& use);
  // Forgets the uses that are done; returns whose the others are.
  Set<const StreamClock*> forget_done_uses();
  // The handle's home is `address`, that of a view, from now on.
  void move_home(HandleId id, Address address) { handles_[id].home = address; }

  const PhysicalPage& page(PageId id) const { return pages_[id]; }
  void take(HandleId id, std::uint64_t taken) { handles_[id].taken = taken; }
  const PhysicalHandle& handle(HandleId id) const { return handles_[id]; }
  const PhysicalHandle& handle_of(PageId id) const { return handles_[pages_[id].handle]; }
  PageId page_of(HandleId id, std::uint32_t index) const { return handles_[id].first + index; }
  // Returns the address of the view in which a page lies at `address`.
  Address view_at(PageId id, Address address) const { return address - pages_[id].index * page_bytes(); }
  // Returns whether nothing needs the view of a handle any more: it is not the home, and unused.
  bool may_unmap(const PhysicalHandle& handle, Address view) const;
  // Returns whether the work that used the handle through the view before it left it is done.
  static bool is_unused(const View& view);
  PageId page_ids() const { return static_cast<PageId>(pages_.size()); }
  HandleId handle_ids() const { return static_cast<HandleId>(handles_.size()); }
  std::size_t live_views() const { return live_views_; }
  // Returns whether some handle has more than one page.
  bool has_large_handles() const { return large_handles_ != 0; }
  // Returns whether some handle is mapped more than once.
  bool has_aliases() const { return live_views_ > handles_.size() - free_ids_.size(); }
  std::size_t bytes(const PhysicalHandle& handle) const { return handle.pages * page_bytes(); }
  std::size_t metadata_bytes() const;

 private:
  static Vector<View>::iterator find_view(PhysicalHandle& handle, Address address);

  PowerOfTwo grid_;
  Vector<PhysicalPage> pages_;  // page 0 is invalid
  Vector<PhysicalHandle> handles_;
  Vector<HandleId> free_ids_;
  Vector<Vector<PageId>> free_pages_;  // first pages of gone handles, by size
  std::size_t live_views_ = 0;
  std::size_t large_handles_ = 0;
};

// The pages without a live byte, as one search finds them: a bit for each page. So whether a page is idle is one look, and
// runs of neighbours come in the order of pages without being sorted.
//
// They are read off the free blocks each time, so that no malloc or free keeps an account of pages. Most idle pages lie in
// one free block, of at least a page; the others have a seam (Seams). So no other small block is looked at.
// Not thread-safe.

class PageHeap;
struct BackingPlan;
struct PageRange;

// From now on a search reaches all free blocks of the pools.
void reach_everything(const PoolPair& pools);

class IdlePages {
 public:
  explicit IdlePages(const PageHeap& heap) : heap_(heap) {}

  // None is idle.
  void clear();
  // Finds the pages all of whose bytes are free, within the reach of their arenas; neighbours that became free on different
  // streams are several blocks. Looks at free blocks alone, however many are live.
  void find(const PoolPair& pools);
  // Notes in a plan for idle pages the blocks that these begin in (BackingPlan::holders).
  void find_holders(BackingPlan& plan);

  std::size_t metadata_bytes() const { return capacity_bytes(words_, holders_); }
  bool has(PageId id) const { return (words_[id / kBits] >> id % kBits & 1) != 0; }
  std::size_t count() const { return count_; }
  // Returns whether all pages of the handle are idle.
  bool has_all(const PhysicalHandle& handle) const {
    return has(handle.first) && (handle.pages == 1 || next(handle.first, kAll) >= handle.first + handle.pages);
  }

  // Calls visit(HandleId) for each handle all of whose pages are idle, by page, until it returns false.
  template <typename Visit>
  void for_each_handle(const PhysicalPages& pages, Visit visit) const {
    for (PageId first = next(0, 0); first < words_.size() * kBits; first = next(first, 0)) {
      const PhysicalPage& page = pages.page(first);
      const PhysicalHandle& handle = pages.handle(page.handle);
      if (page.index == 0 && has_all(handle) && !visit(page.handle)) return;
      first += handle.pages - page.index;
    }
  }

 private:
  static constexpr std::uint32_t kBits = 64;
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};

  void add_block(Block& block);
  void add_page_with_seam(Block& behind_seam);
  void add(PageId first, std::uint32_t pages);
  const PageRange& range_of(Address address);

  // The first page from `id` on whose bit is set once the bits are flipped by `flip`; beyond all words if none is.
  PageId next(PageId id, std::uint64_t flip) const {
    std::size_t word = id / kBits;
    if (word >= words_.size()) return id;
    std::uint64_t bits = (words_[word] ^ flip) >> id % kBits << id % kBits;
    while (bits == 0 && ++word < words_.size()) bits = words_[word] ^ flip;
    const std::size_t bit = bits != 0 ? lowest_bit(bits) : 0;
    return static_cast<PageId>(word * kBits + bit);
  }

  const PageHeap& heap_;
  Vector<std::uint64_t> words_;
  std::size_t count_ = 0;
  const PageRange* range_ = nullptr;  // of the block before
  Vector<BlockAt> holders_;           // of idle pages: the blocks they begin in
};

CACHALOT_END
