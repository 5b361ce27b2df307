// Backing finds the cheapest way to back a window of addresses. It changes only its own scratch tables.
//
// A window's gaps are filled
//   (1) by idle handles that are mapped there still: no driver call,
//   (2) by other idle handles, the largest first,
//   (3) by new handles.
// Stale mappings in the way are dropped if nothing uses them any more; else the window is quarantined, and another serves.
//
// The cost is told in pages: the new ones, those the window strands (it holds them but leaves them in part), and a little for
// the driver's time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/host_memory.h"
#include "pages/driver_costs.h"
#include "pages/page_heap.h"
#include "pages/slots.h"

CACHALOT_BEGIN

struct PlacementRules {
  bool may_move = true;          // idle handles may be taken from other holes
  bool may_drop = true;          // stale views may be unmapped
  bool may_grow = true;          // new handles may be made
  std::size_t handle_bytes = 0;  // of the largest handle made: whole pages; 0: the usual size
  double cost_below = std::numeric_limits<double>::infinity();  // of plans of any interest
};

struct Window {
  PageRange* range = nullptr;
  Address begin = 0;
  Address end = 0;
};

// The slots of windows that overlap.
struct WindowGroup {
  PageRange* range = nullptr;
  Address begin = 0;
  Address end = 0;
  std::optional<std::size_t> number;  // of Slots, once they have been looked at
};

// Keeps its tables from one search to the next, so that it allocates nothing.
class Backing {
 public:
  Backing(PageHeap& heap, const DriverCosts& costs)
      : heap_(heap),
        costs_(costs),
        pages_(heap.pages()),
        page_(heap.page_bytes()),
        grid_(heap.pages().grid()),
        idle_(heap),
        slots_(heap, idle_) {}

  // Finds the idle pages of the pools, as far as their arenas reach; none unless they may be moved.
  void begin_search(const PoolPair& pools, const PlacementRules& rules);
  const IdlePages& idle() const { return idle_; }

  // Returns whether the page at home in a slot has a byte that is not free.
  bool is_live(const PageRange& range, Address slot) const {
    const PageId shown = heap_.shown_at(range, slot);
    return slots_.has_memory(slot, shown) && !idle_.has(shown);
  }

  // Returns what a window of the group lacks; nullopt: a view is in the way.
  std::optional<Lack> lack_of(const Window& window, WindowGroup& group);
  // Returns the cost of a plan of `pages` new pages, mapped side by side.
  double cost_of_new(std::size_t pages, double stranded) const;
  // No plan for the window costs less.
  double lower_bound(const Lack& lack, double stranded);

  // Makes a plan, with its cost: plan(), until the next is made. Returns false if a view is in the way.
  bool fill(const Window& window, double stranded);
  BackingPlan& plan() { return plan_; }
  // Notes in a plan of this search where its pages come from.
  void find_holders(BackingPlan& plan) { idle_.find_holders(plan); }
  // Beside the object itself.
  std::size_t metadata_bytes() const {
    return idle_.metadata_bytes() + slots_.metadata_bytes() + plan_.metadata_bytes() +
           capacity_bytes(sources_, pages_of_one_, unmapped_);
  }

 private:
  struct Stretch {  // of slots
    Address begin;
    Address end;
  };

  // Calls visit(slot, page) for each slot of the window without memory, in order, with the page that it shows (0: none).
  template <typename Visit>
  void for_each_lacking(const Window& window, Visit visit) const;
  bool may_come_home(const Window& window, Address slot, PageId shown) const;
  bool lies_in(const Window& window, const PhysicalHandle& handle) const;

  void find_sources(std::size_t slots);

  bool take_mapped(const Window& window);
  void drop_views_in(const PageRange& range, const Stretch& stretch);
  void take_sources(Stretch& stretch, const Window& window);
  void grow(const Stretch& stretch);
  std::size_t handles_of_new(std::size_t pages) const;
  double driver_cost(std::size_t creates, std::size_t maps, std::size_t ranges, std::size_t unmaps) const;

  PageHeap& heap_;
  const DriverCosts& costs_;
  const PhysicalPages& pages_;
  const std::size_t page_;
  const PowerOfTwo grid_;

  // The search.
  PlacementRules rules_;
  IdlePages idle_;
  Slots slots_;
  // Idle handles, the largest first; of those of a page no more than known_sources_. Found when they are wanted.
  Vector<HandleId> sources_;
  std::size_t known_sources_ = 0;
  Vector<HandleId> pages_of_one_;  // of find_sources

  // The plan.
  BackingPlan plan_;
  std::uint64_t taken_ = 0;  // of the handles that it takes
  Vector<Stretch> unmapped_;
  std::size_t runs_of_drops_ = 0;
};

CACHALOT_END
