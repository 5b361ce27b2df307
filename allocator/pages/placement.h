// Placement finds the place of a request that no free block serves.
//
// A hole is a stretch of free blocks and gaps between live blocks. A window is the request's bytes somewhere in a hole: at
// its end, or at the start of one of its pieces; or behind all that was ever mapped. The best is the one whose backing costs
// least; ties go to the one that strands less, then to the lower address. docs/page_heap.md says how this was found.
//
// Windows are many, and to fill one is work. So each is first known only by its place and by the pages it takes, which a look
// at its ends tells; they are gone through from the least stranded on, and one is looked at, and then filled, only while it
// may still be better than the best so far.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/host_memory.h"
#include "pages/backing.h"

CACHALOT_BEGIN

// Keeps its tables from one search to the next, so that it allocates nothing but the plan it returns. Not thread-safe.
class Placement {
 public:
  Placement(PageHeap& heap, const DriverCosts& costs)
      : heap_(heap), grid_(heap.pages().grid()), backing_(heap, costs) {}

  // Returns the best plan for `bytes`; nullopt when there is none within the rules, or no range has the addresses. `pools` are
  // those of the arena's owner; of their free blocks, those within the reach of their arenas may serve the request.
  std::optional<BackingPlan> best(const Arena& arena, const PoolPair& pools, std::size_t bytes,
                                  const PlacementRules& rules);
  std::size_t metadata_bytes() const {
    return sizeof(*this) + capacity_bytes(candidates_, groups_) + best_.metadata_bytes() + backing_.metadata_bytes();
  }

 private:
  struct Candidate {
    Window window;
    std::size_t group;
    std::size_t pages;  // it takes for itself, idle or not; where none may move, those without memory
    bool at_end;        // reaches into the gap at the end of the range
  };

  void find_windows();
  void find_windows_of(PageRange& range);
  Address add_windows(PageRange& range, Block& first_gap);
  void add_window(PageRange& range, const Block& holder, Address begin, bool endless);
  std::size_t group_of(const Window& window);
  std::size_t pages_taken(const Window& window) const;
  std::size_t slots_without_memory(const Window& window, const Block& holder) const;
  std::size_t fewest_pages(std::size_t at_least) const;
  double stranded_by(std::size_t pages) const { return static_cast<double>(pages) - pages_wanted_; }

  void search();
  double least_cost(std::size_t pages) const;
  void consider(const Candidate& candidate);
  void keep_if_better();

  PageHeap& heap_;
  const PowerOfTwo grid_;
  Backing backing_;

  // The search.
  const Arena* arena_ = nullptr;
  std::size_t bytes_ = 0;
  double pages_wanted_ = 0;  // a fraction
  PlacementRules rules_;
  Vector<Candidate> candidates_;  // by address
  Vector<WindowGroup> groups_;
  std::size_t tries_ = 0;
  double cost_below_ = 0;  // of the best so far, or the limit
  bool has_best_ = false;
  BackingPlan best_;
};

CACHALOT_END
