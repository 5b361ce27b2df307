#include "pages/backing.h"

#include <algorithm>
#include <functional>

#include "base/bytes.h"

CACHALOT_BEGIN

namespace {

// Driver time in pages: one is worth half a millisecond.
constexpr double kPagesPerMicrosecond = 0.002;

}  // namespace

void Backing::begin_search(const PoolPair& pools, const PlacementRules& rules) {
  rules_ = rules;
  known_sources_ = 0;
  slots_.begin_search(rules.may_drop);
  if (!rules.may_move) {
    idle_.clear();
  } else {
    idle_.find(pools);
  }
}

// --- the missing memory of a window -----------------------------------------------------------------------------------

template <typename Visit>
void Backing::for_each_lacking(const Window& window, Visit visit) const {
  for (Address slot = grid_.down(window.begin); slot < window.end; slot += page_) {
    const PageId shown = heap_.shown_at(*window.range, slot);
    if (!slots_.has_memory(slot, shown)) visit(slot, shown);
  }
}

bool Backing::lies_in(const Window& window, const PhysicalHandle& handle) const {
  return handle.home < window.end && heap_.end_of(handle) > window.begin;
}

// Returns whether the handle of the page that a slot shows is idle, outside the window, and shown there as a whole.
bool Backing::may_come_home(const Window& window, Address slot, PageId shown) const {
  if (shown == 0 || shown == PageHeap::kBlocked) return false;
  const PhysicalHandle& handle = pages_.handle_of(shown);
  const Address view = pages_.view_at(shown, slot);
  return idle_.has_all(handle) && !lies_in(window, handle) && view >= grid_.down(window.begin) &&
         view + pages_.bytes(handle) <= grid_.up(window.end);
}

double Backing::driver_cost(std::size_t creates, std::size_t maps, std::size_t ranges, std::size_t unmaps) const {
  return kPagesPerMicrosecond * costs_.prices().of(creates, maps, ranges, unmaps);
}

std::size_t Backing::handles_of_new(std::size_t pages) const {
  return (pages * page_ + rules_.handle_bytes - 1) / rules_.handle_bytes;
}

double Backing::cost_of_new(std::size_t pages, double stranded) const {
  const std::size_t creates = handles_of_new(pages);
  return static_cast<double>(pages) + stranded + driver_cost(creates, creates, 1, 0);
}

std::optional<Lack> Backing::lack_of(const Window& window, WindowGroup& group) {
  if (!group.number) group.number = slots_.sum_up(*group.range, group.begin, group.end);
  const Lack lack = slots_.lack_of(*group.number, grid_.whole_in(grid_.down(window.begin) - group.begin),
                                   grid_.whole_in(grid_.up(window.end) - group.begin));
  return lack.blocked == 0 ? std::optional(lack) : std::nullopt;
}

// At best the largest sources do, which saves new pages and so costs less than these. Only what is in the way can join
// stretches of the window into one: a view, or an idle page that does not come home after all. Such a page joins two stretches,
// for an unmap in place of a set_access, or two runs of views.
double Backing::lower_bound(const Lack& lack, double stranded) {
  if (lack.to_map == 0) return stranded;
  find_sources(lack.slots);
  std::size_t maps = 0;
  std::size_t pages = 0;
  while (pages < lack.to_map && maps < sources_.size()) pages += pages_.handle(sources_[maps++]).pages;
  const std::size_t new_pages = lack.to_map > pages ? lack.to_map - pages : 0;
  const std::size_t creates = handles_of_new(new_pages);
  const std::uint32_t idle = lack.slots - lack.to_map;
  const std::uint32_t joints = lack.drops == 0 ? std::min(lack.stretches - 1, idle) : 0;
  const std::size_t stretches = lack.drops == 0 ? lack.stretches - joints : 1;
  const std::size_t unmaps = lack.drops > idle ? lack.drops - idle : std::min(lack.drops, 1U);
  const DriverCosts::Prices& prices = costs_.prices();
  const double joint_us = std::min(prices.unmap, prices.set_access - prices.set_access_mapping);
  return static_cast<double>(new_pages) + stranded +
         driver_cost(creates, std::max(maps + creates, stretches), stretches, unmaps) +
         kPagesPerMicrosecond * joint_us * joints;
}

// --- where idle handles are -------------------------------------------------------------------------------------------

// Finds as many as a window of `slots` slots may look at: it takes no more than it has slots for, and passes over those that it
// has already and those that lie in it.
void Backing::find_sources(std::size_t slots) {
  const std::size_t enough = 3 * slots;
  if (known_sources_ >= enough) return;
  known_sources_ = enough;
  sources_.clear();
  pages_of_one_.clear();
  const bool all_are_small = !pages_.has_large_handles();
  idle_.for_each_handle(pages_, [&](HandleId id) {
    const bool is_large = pages_.handle(id).pages > 1;
    if (is_large) sources_.push_back(id);
    if (!is_large && pages_of_one_.size() < enough) pages_of_one_.push_back(id);
    return !all_are_small || pages_of_one_.size() < enough;
  });
  if (pages_of_one_.size() < enough) known_sources_ = std::numeric_limits<std::size_t>::max();  // all of them
  std::ranges::stable_sort(sources_, std::greater(), [this](HandleId id) { return pages_.handle(id).pages; });
  sources_.insert(sources_.end(), pages_of_one_.begin(), pages_of_one_.end());
}

// --- filling a window -------------------------------------------------------------------------------------------------

bool Backing::fill(const Window& window, double stranded) {
  plan_.range = window.range;
  plan_.begin = window.begin;
  plan_.end = window.end;
  plan_.drops.clear();
  plan_.growths.clear();
  plan_.moves.clear();
  plan_.new_pages = 0;
  plan_.new_views = 0;
  runs_of_drops_ = 0;
  if (!take_mapped(window)) return false;
  if (!unmapped_.empty()) find_sources(grid_.whole_in(grid_.up(window.end) - grid_.down(window.begin)));
  for (Stretch& stretch : unmapped_) {
    drop_views_in(*window.range, stretch);
    take_sources(stretch, window);
    grow(stretch);
  }
  const std::size_t maps = plan_.growths.size() + plan_.new_views;
  const double wait_us = plan_.new_views != 0 ? costs_.prices().remap_wait : 0;
  plan_.cost = static_cast<double>(plan_.new_pages) + stranded +
               driver_cost(plan_.growths.size(), maps, unmapped_.size(), runs_of_drops_) +
               kPagesPerMicrosecond * wait_us;
  return true;
}

// (1) Idle handles that are mapped where the window lacks memory; the rest to fill goes to unmapped_. Returns false if a view
// is in the way.
bool Backing::take_mapped(const Window& window) {
  taken_ = heap_.next_mark();
  unmapped_.clear();
  bool may_go = true;
  Address covered = 0;  // by the last view that stays
  for_each_lacking(window, [&](Address slot, PageId shown) {
    if (slot < covered) return;
    if (may_come_home(window, slot, shown) && pages_.handle_of(shown).taken != taken_) {
      const HandleId id = pages_.page(shown).handle;
      plan_.moves.push_back({id, slot, /*is_mapped=*/true});
      heap_.pages().take(id, taken_);
      covered = slot + pages_.bytes(pages_.handle(id));
      return;
    }
    may_go = may_go && (shown == 0 || slots_.may_drop(slot, shown));
    if (unmapped_.empty() || unmapped_.back().end != slot) unmapped_.push_back({slot, slot});
    unmapped_.back().end += page_;
  });
  return may_go;
}

void Backing::drop_views_in(const PageRange& range, const Stretch& stretch) {
  Address run_end = 0;
  for (Address slot = stretch.begin; slot < stretch.end; slot += page_) {
    const PageId shown = heap_.shown_at(range, slot);
    if (shown == 0) continue;
    const Address view = pages_.view_at(shown, slot);
    const bool known = !plan_.drops.empty() && plan_.drops.back().at == view;
    if (!known) plan_.drops.push_back({pages_.page(shown).handle, view});
    if (slot != run_end) ++runs_of_drops_;
    run_end = slot + page_;
  }
}

// (2) for one stretch, of which it leaves the end that no idle handle fits.
void Backing::take_sources(Stretch& stretch, const Window& window) {
  for (const HandleId id : sources_) {
    if (stretch.begin == stretch.end) return;
    const PhysicalHandle& handle = pages_.handle(id);
    const std::size_t bytes = pages_.bytes(handle);
    if (bytes > stretch.end - stretch.begin || handle.taken == taken_ || lies_in(window, handle)) continue;
    plan_.moves.push_back({id, stretch.begin, /*is_mapped=*/false});
    ++plan_.new_views;
    heap_.pages().take(id, taken_);
    stretch.begin += bytes;
  }
}

void Backing::grow(const Stretch& stretch) {
  for (Address at = stretch.begin; at < stretch.end;) {
    const std::size_t bytes = std::min(stretch.end - at, rules_.handle_bytes);
    plan_.growths.push_back({at, static_cast<std::uint32_t>(grid_.whole_in(bytes))});
    plan_.new_pages += grid_.whole_in(bytes);
    at += bytes;
  }
}

CACHALOT_END
