// PageHeap: address space behind which physical pages come, go and move.
//
// A range of addresses, reserved from the device, is tiled by blocks that have memory and gaps that have none
// (BlockHeap::add_range). Free blocks lie in their arena's bins: requests that one of them can serve cost no driver
// call and do not concern this class. It serves the others. Then Placement looks for a window of addresses in the holes
// between live blocks, and for the memory its gaps lack: idle pages of other holes, mapped a second time or already
// mapped there, or new ones. The result is a BackingPlan; the code that carries it out makes the driver calls.
//
// The memory of a private pool stays its own: pools have ranges of their own, and so have small and large requests.
//
// Invariants (validate() checks them): (1) the bytes of the blocks of a range are the pages at home in it: each slot of
// a block shows the page whose home it is; (2) in a gap, every slot shows no page or one that is at home elsewhere. Not
// thread-safe: guarded by the mutex of its DeviceAllocator, and changed only with its growth mutex held as well.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/function_ref.h"
#include "base/host_memory.h"
#include "blocks/block.h"
#include "blocks/block_heap.h"
#include "blocks/block_pool.h"
#include "pages/physical_pages.h"
#include "pages/stream_clock.h"

CACHALOT_BEGIN

// The gaps of a range, by address, so that a search for one walks neither over blocks nor over the map of runs. Gaps
// change only when pages come or go, not with a malloc or a free. Not thread-safe.
class Gaps {
 public:
  std::size_t count() const { return gaps_.size(); }
  const BlockAt& operator[](std::size_t index) const { return gaps_[index]; }
  // The index of the first gap that begins at the address or behind it; count(): none does.
  std::size_t first_from(Address address) const;
  // Returns the last gap that begins at the address or before it, or null.
  Block* last_until(Address address) const;

  // Returns the gap that holds the address, or else the first behind it, or null.
  Block* at_or_behind(Address address) const;

  // A gap is there, in place of those that were within its addresses.
  void add(Block& gap);
  void remove(Address address);
  // The gap at an address begins farther behind now, and is another block.
  void move(Address address, Block& gap);

  std::size_t metadata_bytes() const { return capacity_bytes(gaps_); }

 private:
  Vector<BlockAt>::iterator at(Address address);

  Vector<BlockAt> gaps_;
};

// A seam is where memory of one arena meets memory of another inside a page. Such a page may be idle although no free
// block covers it: two or more do, which do not merge because they belong to different arenas.
//
// Arenas of memory change only when pages move or are handed over, not with a malloc or a free. No block lies across a
// seam, and the block behind it neither ends nor becomes part of another as long as the seam is there. So the PageHeap
// notes seams where it makes and removes them, and a search finds the pages without looking at any other small block.
// Not thread-safe.
class Seams {
 public:
  explicit Seams(PowerOfTwo grid) : grid_(grid) {}

  const Vector<BlockAt>& all() const { return seams_; }  // by address: the blocks that begin there
  // Forgets the seams at begin, at end and between them.
  void forget(Address begin, Address end);
  // Forgets the seams at both ends of a block and in it, and notes those that are at its ends now.
  void look_again(Block& block) noexcept;  // host memory that runs out ends the program

  bool is_seam(const Block& block) const {
    return !block.is_edge() && !block.prev->is_edge() && block.prev->arena != block.arena &&
           grid_.down(block.address) != block.address;
  }
  std::size_t metadata_bytes() const { return capacity_bytes(seams_); }

 private:
  Vector<BlockAt>::iterator first_from(Address address) {
    return std::ranges::lower_bound(seams_, address, {}, &BlockAt::address);
  }

  PowerOfTwo grid_;
  Vector<BlockAt> seams_;
};

// Reserved addresses, all for one pool and kind.
struct PageRange {
  Address base = 0;
  std::size_t bytes = 0;
  PoolKind kind = PoolKind::large;
  const PrivatePool* owner = nullptr;  // null: the default pool
  Vector<PageId> shown;                // by slot: the page mapped there; beyond its end none
  Address top = 0;                     // nothing was ever mapped from here on
  Block* tail = nullptr;               // the gap at the end, or null
  Gaps gaps;
  Address next_gap = 0;  // where the last search of a part of them ended

  Address end() const { return base + bytes; }
};

// The home of a handle that leaves it.
struct HandleHome {
  Address address;
  std::size_t bytes;
  Block* holder;  // as in BackingPlan::holders, or null before it is looked up
};

// The plan that gives a request its memory. All addresses but begin and end are multiples of a page.
struct BackingPlan {
  struct Move {  // an idle handle comes home
    HandleId handle = 0;
    Address to = 0;
    bool is_mapped = false;  // there; else it gets a view
  };
  struct Mapping {
    HandleId handle = 0;
    Address at = 0;
  };
  struct Growth {
    Address at = 0;
    std::uint32_t pages = 0;
  };
  PageRange* range = nullptr;
  Address begin = 0;  // the request is to lie in [begin, end)
  Address end = 0;
  Vector<Mapping> drops;   // stale views in the way
  Vector<Growth> growths;  // new handles
  Vector<Move> moves;
  Vector<Block*> holders;  // by the moves: the free blocks that the homes begin in; empty: they are looked up
  std::size_t new_pages = 0;
  std::size_t new_views = 0;
  double cost = 0;  // in pages: see Backing

  // Beside the object itself.
  std::size_t metadata_bytes() const { return capacity_bytes(drops, growths, moves, holders); }

  bool calls_driver() const { return !growths.empty() || new_views != 0 || !drops.empty(); }
};

class PageHeap {
 public:
  PageHeap(BlockHeap& heap, std::size_t page_bytes) : heap_(heap), pages_(page_bytes), seams_(pages_.grid()) {}

  PhysicalPages& pages() { return pages_; }
  const PhysicalPages& pages() const { return pages_; }
  std::size_t page_bytes() const { return pages_.page_bytes(); }
  const Seams& seams() const { return seams_; }

  // Addresses the device reserved.
  PageRange& add_range(Address base, std::size_t bytes, PoolKind kind, const PrivatePool* owner);
  // Removes the ranges of a pool that has ended; every page is gone.
  void remove_ranges(const PrivatePool* owner, FunctionRef<void(const PageRange&)> unreserve);
  Map<Address, PageRange>& ranges() { return ranges_; }
  const Map<Address, PageRange>& ranges() const { return ranges_; }
  bool holds(Address address) const { return range_of(address) != nullptr; }
  const PageRange* range_of(Address address) const;
  PageRange* range_of(Address address) { return const_cast<PageRange*>(std::as_const(*this).range_of(address)); }

  PageId shown_at(const PageRange& range, Address slot) const {
    const std::size_t index = pages_.grid().whole_in(slot - range.base);
    return index < range.shown.size() ? range.shown[index] : 0;
  }
  void show(PageRange& range, const PhysicalHandle& handle, Address at);
  // Nothing can be mapped at [at, at + bytes): the device did not unmap the memory there.
  static constexpr PageId kBlocked = ~PageId{0};
  void block(Address at, std::size_t bytes);
  // Nothing is mapped there any more.
  void hide(Address at, std::size_t bytes);

  // The block or gap that holds an address of a run or of a gap beside it, from one that lies before it or holds it.
  static Block& block_at(Block& before, Address address);

  // Takes the plan's window and the pages that are to move out of the bins, so that no other thread takes them up while
  // the driver works; the pages' old addresses become gaps. Reports each stretch that loses its memory, and its last
  // user.
  struct VacatedStretch {
    Arena* arena;
    Address address;
    std::size_t bytes;
    std::uint32_t epoch;
  };
  // Here, as in finish and undo, host memory that runs out ends the program: nothing half done could be taken back.
  Vector<VacatedStretch> begin(const BackingPlan& plan) noexcept;
  // Returns the blocks whose memory a plan takes: the free blocks of its window and those that its pages come from.
  Vector<const Block*> blocks_of(const BackingPlan& plan);
  // The driver did its part: memory is where the plan wants it. Returns the free block, of `arena`, that holds the
  // window.
  Block& finish(const BackingPlan& plan, Arena& arena) noexcept;
  // It did not: everything is as it was.
  void undo(const BackingPlan& plan, const Vector<VacatedStretch>& vacated) noexcept;
  // Before finish: the handles are at home where the plan wants them; the views they leave keep the tickets of their last
  // uses.
  void move_homes(const BackingPlan& plan, const Vector<VacatedStretch>& vacated,
                  FunctionRef<Ticket(const VacatedStretch&)> ticket_of);

  // The handles of an owner's pools without a live byte, by the addresses of their first pages.
  Vector<HandleId> idle_handles(const PoolPair& pools) const;
  // Claims the memory of handles without a live byte, which are sorted by their homes. Then either their addresses become gaps, or it
  // is free again. `visit` is called for each stretch of one arena that becomes a gap.
  struct IdleMemory {
    const PageRange& range;
    const Block& block;
    bool is_asleep;
  };
  void claim_handles(const Vector<HandleId>& idle);
  void forget_memory(const Vector<HandleId>& idle, FunctionRef<void(const IdleMemory&)> visit);
  void put_back_idle(const Vector<HandleId>& idle);

  // The handles of a private pool, by address. Each has one view, since its pages never move.
  Vector<HandleId> handles_of(const PrivatePool& owner) const;
  struct Run {  // of handles that are mapped side by side in one range
    Address begin = 0;
    std::size_t bytes = 0;
    Vector<HandleId> handles;
  };
  Vector<Run> runs_of(const Vector<HandleId>& by_address) const;
  // Returns the views in the default pools' ranges that may be unmapped, by address.
  Vector<Run> stale_runs() const;
  // The stretches of a private pool's handle that hold live blocks, or such that wait for other streams.
  struct Stretch {
    Address begin = 0;
    std::size_t bytes = 0;
  };
  Vector<Stretch> used_stretches(HandleId id);
  // Returns the sleeping bytes of [begin, end), which is all mapped or asleep.
  std::size_t asleep_bytes(Address begin, Address end) const;

  // The block that holds an address; `before`: one that lies before it or holds it, which may be nearer than the head of its run.
  Block& first_block(Address address, Block* before = nullptr);
  // Returns the end of the addresses at which a handle is at home.
  Address end_of(const PhysicalHandle& handle) const { return handle.home + pages_.bytes(handle); }

  // The views that show the addresses of blocks, in order.
  struct ShownHandle {
    HandleId handle;
    Address at;  // where it is mapped, whole
  };
  Vector<ShownHandle> views_of(Address begin, Address end) const;
  // Returns the address in a block of the first `bytes` that lie in one handle; nullopt: there are none.
  std::optional<Address> room_in_one_handle(const Block& block, std::size_t bytes) const;
  // A new handle for `bytes` bytes of an arena, where nothing is mapped; nullopt: no range has the addresses.
  std::optional<BackingPlan> plan_handle(const Arena& arena, std::size_t bytes);
  // [begin, end) of a free block, not merged with what may be free beside it: to be taken at once.
  Block& set_apart(Block& block, Address begin, Address end) noexcept;
  // Returns the mapped addresses, in stretches as long as can be; without those that are blocked or asleep.
  std::vector<AddressRange> mapped_addresses() const;

  // A part of a free block becomes a free block of another arena; returns that.
  Block& hand_over(Block& block, Address begin, Address end, Arena& arena);

  BlockHeap& heap() { return heap_; }
  // For Placement: takes pages.
  std::uint64_t next_mark() { return ++mark_; }
  // `moving`: bytes between begin and finish just now.
  std::string validate(std::size_t moving) const;
  std::string validate_idle_pages(const PoolPair& pools) const;
  std::size_t metadata_bytes() const;

 private:
  Address first_unmapped(const PageRange& range, std::size_t bytes) const;
  PageId* slots_for(PageRange& range, Address at, std::size_t bytes);
  Block& cut(PageRange& range, Block& block, Address address);
  Block& first_piece(const BackingPlan& plan);
  Block& isolate(PageRange& range, Block& block, Address begin, Address end);
  Vector<VacatedStretch> vacate_homes(Vector<HandleHome>& homes) noexcept;
  void reopen(const VacatedStretch& part) noexcept;
  template <typename Visit>
  void claim_stretch(PageRange& range, Block& first, Address begin, Address end, Visit visit);
  void close(PageRange& range, Block& block);
  Block& open(PageRange& range, Block& gap, Address begin, Address end, Arena& arena);

  BlockHeap& heap_;
  PhysicalPages pages_;
  Seams seams_;
  Map<Address, PageRange> ranges_;
  std::uint64_t mark_ = 0;
};

// Calls visit(Block&) for each part of [begin, end), claimed: free blocks, of which `first` holds `begin`, cut to it. visit
// may make the part a gap.
template <typename Visit>
void PageHeap::claim_stretch(PageRange& range, Block& first, Address begin, Address end, Visit visit) {
  Block* holder = &first;
  while (begin < end) {
    const Address part_end = holder->end() < end ? holder->end() : end;
    Block& part = isolate(range, *holder, begin, part_end);
    holder = part.next;
    begin = part_end;
    visit(part);
  }
}

CACHALOT_END
