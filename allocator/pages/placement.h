// Where a request that no free block serves is to go, and which memory comes there. Pure: it changes nothing but marks.
//
// A hole is a stretch of free blocks and gaps between live blocks. A window is the request's bytes somewhere in a hole: at
// its end, or at the start of one of its pieces; or far behind all that was ever mapped, where it may begin and end inside
// a handle. A window's gaps are filled
//   (1) by idle pages that are mapped there still: no driver call,
//   (2) by handles that are idle as a whole; where nothing is mapped behind the window, the last of them may reach
//       beyond it, and need be idle only in its first pages; where nothing is mapped before it, likewise the first,
//   (3) by new handles.
// Stale mappings in the way are dropped if nothing uses them any more; else the window is quarantined, and another serves.
//
// What is best is told in pages: the new ones, those the window strands (it holds them but leaves them in part), and a
// little for the driver's time. Ties go to the lower address. docs/page_heap.md says how this was found.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "pages/page_heap.h"

namespace cachalot {

struct PlacementRules {
  bool may_move = true;          // idle pages may be taken from other holes
  bool may_drop = true;          // stale views may be unmapped
  std::size_t handle_bytes = 0;  // largest handle made; a multiple of the page
};

class Placement {
 public:
  // `pools` are those of the arena's owner; `usable` says whether a free block of another stream may serve the request.
  Placement(PageHeap& heap, const Arena& arena, const PageHeap::PoolPair& pools, std::size_t bytes,
            const PlacementRules& rules, PageHeap::MayUse usable);

  // The best plan; nullopt when there is none, or no range has the addresses.
  std::optional<BackingPlan> best(bool may_grow) const;

 private:
  struct Window {
    PageRange* range;
    Address begin;
    Address end;
    std::size_t lacking;  // slots
    double stranded;      // pages it takes for itself, idle or not, less those it fills
    double least_cost;    // of filling it with idle pages; seldom a call for access too many
    bool at_end;          // reaches into the gap at the end of the range
  };
  struct Stretch {  // of slots without memory
    Address begin;
    Address end;
  };
  struct IdleRun {  // pages of a handle
    HandleId handle;
    std::uint32_t begin;
    std::uint32_t end;
    std::uint32_t pages() const { return end - begin; }
  };

  bool is_idle(PageId page, const Window& window) const;
  void find_idle_runs(const PageHeap::PoolPair& pools);
  void add_idle_page(PageId id);
  bool is_whole(const IdleRun& run) const { return run.pages() == pages_.handle(run.handle).pages; }

  void find_windows();
  void add_windows(PageRange& range, Block& first_gap);
  void add_window(PageRange& range, Address begin, bool endless);
  bool may_hold(const Block& block) const;
  template <typename Visit>
  void for_each_slot(const Window& window, Visit visit) const;
  template <typename Visit>
  void for_each_lacking(const Window& window, Visit visit) const;
  bool has_memory(Address slot, PageId shown) const;
  // The address of the view in which a slot shows a page.
  Address view_at(Address slot, PageId shown) const { return slot - pages_.page(shown).index * page_; }
  bool may_drop(Address slot, PageId shown) const;

  std::optional<BackingPlan> fill(const Window& window) const;
  std::optional<BackingPlan> fill_far_away() const;
  bool take_mapped(const Window& window, BackingPlan& plan, std::vector<Stretch>& unmapped) const;
  void add_move(PageId page, Address slot, BackingPlan& plan) const;
  std::vector<IdleRun> sources(const Window& window, const BackingPlan& plan) const;
  void drop_views_in(const Window& window, const Stretch& stretch, BackingPlan& plan) const;
  std::size_t room_after(const PageRange& range, Address slot) const;
  void tile(Stretch stretch, std::size_t room, std::vector<IdleRun>& runs, BackingPlan& plan) const;
  void tile_whole(Stretch& stretch, std::vector<IdleRun>& runs, BackingPlan& plan) const;
  static std::vector<IdleRun*> best_sum(const std::vector<IdleRun*>& runs, std::size_t wanted);
  void place(IdleRun& run, Address at, BackingPlan& plan) const;
  void grow(const Stretch& stretch, BackingPlan& plan) const;
  double cost_of(const BackingPlan& plan, double stranded) const;

  PageHeap& heap_;
  const PhysicalPages& pages_;
  const Arena& arena_;
  const std::size_t bytes_;
  const std::size_t page_;
  const double pages_wanted_;  // a fraction
  const PlacementRules rules_;
  const PageHeap::MayUse usable_;
  const std::uint64_t mark_;
  std::vector<IdleRun> idle_;  // by page
  std::size_t idle_pages_ = 0;
  std::vector<Window> windows_;     // the least stranded first
  mutable Address asked_view_ = 0;  // of may_drop, the last time
  mutable bool asked_may_drop_ = false;
};

}  // namespace cachalot
