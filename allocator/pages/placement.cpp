#include "pages/placement.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace cachalot {

namespace {

// Windows that are filled before the best is taken: a bound on the time spent.
constexpr std::size_t kTries = 16;
// Slots left free between what is mapped and a window far away, so that both can reach on.
constexpr std::size_t kSpacing = 128;
// Driver time in pages: one is worth half a millisecond. The latencies are those of LatencyModel::published.
constexpr double kPagesPerMicrosecond = 0.002;
constexpr double kCreateUs = 29;
constexpr double kMapUs = 2;
constexpr double kSetAccessUs = 38;
constexpr double kUnmapUs = 34;

double driver_cost(std::size_t creates, std::size_t maps, std::size_t set_accesses, std::size_t unmaps) {
  const double us = static_cast<double>(creates) * kCreateUs + static_cast<double>(maps) * kMapUs +
                    static_cast<double>(set_accesses) * kSetAccessUs + static_cast<double>(unmaps) * kUnmapUs;
  return kPagesPerMicrosecond * us;
}

}  // namespace

Placement::Placement(PageHeap& heap, const Arena& arena, const PageHeap::PoolPair& pools, std::size_t bytes,
                     const PlacementRules& rules, PageHeap::MayUse usable)
    : heap_(heap),
      pages_(heap.pages()),
      arena_(arena),
      bytes_(bytes),
      page_(heap.page_bytes()),
      pages_wanted_(static_cast<double>(bytes) / static_cast<double>(page_)),
      rules_(rules),
      usable_(std::move(usable)),
      mark_(heap.next_mark()) {
  if (rules.may_move) find_idle_runs(pools);
  find_windows();
}

// Calls visit(slot, page) for each slot of the window, in order, with the page that it shows (0: none); until it says false.
template <typename Visit>
void Placement::for_each_slot(const Window& window, Visit visit) const {
  const std::vector<PageId>& shown = window.range->shown;
  Address slot = round_down(window.begin, page_);
  for (std::size_t i = (slot - window.range->base) / page_; slot < window.end; ++i, slot += page_) {
    if (!visit(slot, i < shown.size() ? shown[i] : PageId{0})) return;
  }
}

// Calls visit(slot, page) for each slot of the window without memory, in order.
template <typename Visit>
void Placement::for_each_lacking(const Window& window, Visit visit) const {
  for_each_slot(window, [&](Address slot, PageId shown) {
    if (!has_memory(slot, shown)) visit(slot, shown);
    return true;
  });
}

bool Placement::has_memory(Address slot, PageId shown) const {
  return shown != 0 && shown != PageHeap::kBlocked && pages_.page(shown).home == slot;
}

// --- idle pages -------------------------------------------------------------------------------------------------------

// Read off the free blocks, so that a malloc or free keeps no account of pages.
void Placement::find_idle_runs(const PageHeap::PoolPair& pools) {
  heap_.for_each_idle_page(pools, usable_, [this](PageId id) { add_idle_page(id); });
  // Pages of a handle that are idle in several holes count as one run if they are neighbours in the handle.
  std::sort(idle_.begin(), idle_.end(), [this](const IdleRun& a, const IdleRun& b) {
    return pages_.page_of(a.handle, a.begin) < pages_.page_of(b.handle, b.begin);
  });
  std::vector<IdleRun> joined;
  for (const IdleRun& run : idle_) {
    if (!joined.empty() && joined.back().handle == run.handle && joined.back().end == run.begin) {
      joined.back().end = run.end;
    } else {
      joined.push_back(run);
    }
  }
  idle_ = std::move(joined);
}

void Placement::add_idle_page(PageId id) {
  heap_.pages().mark(id, mark_);
  ++idle_pages_;
  const PhysicalPage& page = pages_.page(id);
  if (!idle_.empty() && idle_.back().handle == page.handle && idle_.back().end == page.index) {
    ++idle_.back().end;
  } else {
    idle_.push_back({page.handle, page.index, page.index + 1});
  }
}

bool Placement::is_idle(PageId id, const Window& window) const {
  if (id == PageHeap::kBlocked) return false;
  const PhysicalPage& page = pages_.page(id);
  return page.mark == mark_ && (page.home >= window.end || page.home + page_ <= window.begin);
}

// --- windows ----------------------------------------------------------------------------------------------------------

bool Placement::may_hold(const Block& block) const { return block.is_gap() || (block.is_free() && usable_(block)); }

void Placement::find_windows() {
  for (auto& [base, range] : heap_.ranges()) {
    if (range.owner != arena_.pool.owner() || range.kind != arena_.pool.kind()) continue;
    for (auto run = heap_.heap().segments().lower_bound(base);
         run != heap_.heap().segments().end() && run->first < range.end(); ++run) {
      if (run->second->prev->is_gap()) add_windows(range, *run->second->prev);
    }
    if (range.tail != nullptr) add_windows(range, *range.tail);
  }
  std::sort(windows_.begin(), windows_.end(), [](const Window& a, const Window& b) {
    return a.stranded != b.stranded ? a.stranded < b.stranded : a.begin < b.begin;
  });
}

// Of the hole whose first gap this is.
void Placement::add_windows(PageRange& range, Block& first_gap) {
  Block* first = &first_gap;
  while (may_hold(*first->prev)) {
    first = first->prev;
    if (first->is_gap()) return;  // not its first
  }
  Block* last = &first_gap;
  while (may_hold(*last->next)) last = last->next;
  const bool endless = last == range.tail;
  const Address end = last->end();
  for (Block* piece = first;; piece = piece->next) {
    if (bytes_ <= end - piece->address) add_window(range, piece->address, endless);
    if (piece == last) break;
  }
  if (endless) {
    const Address begin = std::max(range.top, last->address);
    if (begin != last->address && bytes_ <= end - begin) add_window(range, begin, true);
  } else if (bytes_ <= end - first->address) {
    add_window(range, end - bytes_, false);
  }
}

void Placement::add_window(PageRange& range, Address begin, bool endless) {
  Window window{&range, begin, begin + bytes_, 0, 0, 0, false};
  window.at_end = endless && window.end > range.tail->address;
  std::size_t idle = 0;
  std::size_t stretches = 0;  // to be mapped, by a call for access each
  std::size_t drops = 0;
  Address end_of_stretch = 0;
  Address dropped = 0;
  bool is_fit = true;
  for_each_slot(window, [&](Address slot, PageId shown) {
    if (has_memory(slot, shown)) {
      idle += pages_.page(shown).mark == mark_ ? 1 : 0;
      return true;
    }
    ++window.lacking;
    if (shown != 0) {
      if (is_idle(shown, window)) return true;
      if (!may_drop(slot, shown)) return is_fit = false;
      if (view_at(slot, shown) != dropped) ++drops;
      dropped = view_at(slot, shown);
    }
    if (slot != end_of_stretch) ++stretches;
    end_of_stretch = slot + page_;
    return true;
  });
  if (!is_fit) return;
  window.stranded = static_cast<double>(window.lacking + idle) - pages_wanted_;
  window.least_cost = window.stranded + driver_cost(0, stretches, stretches, drops);
  windows_.push_back(window);
}

// Whether the view that shows a page at the slot may be unmapped. Asked of many slots of a view in a row.
bool Placement::may_drop(Address slot, PageId shown) const {
  if (!rules_.may_drop || shown == PageHeap::kBlocked) return false;
  const Address view = view_at(slot, shown);
  if (view != asked_view_) {
    asked_view_ = view;
    asked_may_drop_ = PhysicalPages::may_unmap(pages_.view_at(shown, slot));
  }
  return asked_may_drop_;
}

// --- filling ----------------------------------------------------------------------------------------------------------

// New pages may be wanted where idle ones are too few, and no fewer than that: windows that cannot be better than the best
// so far are not filled.
std::optional<BackingPlan> Placement::best(bool may_grow) const {
  std::optional<BackingPlan> best;
  const auto consider = [&](std::optional<BackingPlan> plan, double stranded) {
    if (!plan || (!may_grow && plan->new_pages != 0)) return;
    plan->cost = cost_of(*plan, stranded);
    if (!best || plan->cost < best->cost) best = std::move(plan);
  };
  std::size_t tries = 0;
  for (const Window& window : windows_) {
    const std::size_t new_pages = window.lacking > idle_pages_ ? window.lacking - idle_pages_ : 0;
    const bool is_hopeless = best && static_cast<double>(new_pages) + window.least_cost >= best->cost;
    if (is_hopeless || (!may_grow && new_pages != 0)) continue;
    if (++tries > kTries && !window.at_end && best) continue;
    consider(fill(window), window.stranded);
  }
  const double stranded = static_cast<double>((bytes_ + page_ - 1) / page_) - pages_wanted_;
  const double least_cost = stranded + driver_cost(0, 1, 1, 0);
  if (rules_.may_move && idle_pages_ != 0 && (!best || least_cost < best->cost)) consider(fill_far_away(), stranded);
  return best;
}

double Placement::cost_of(const BackingPlan& plan, double stranded) const {
  std::vector<Stretch> mapped;
  for (const BackingPlan::Growth& growth : plan.growths) {
    mapped.push_back({growth.at, growth.at + growth.pages * page_});
  }
  for (const BackingPlan::Mapping& view : plan.views) {
    mapped.push_back({view.at, view.at + pages_.bytes(pages_.handle(view.handle))});
  }
  std::sort(mapped.begin(), mapped.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  std::size_t ranges = 0;
  for (std::size_t i = 0; i < mapped.size(); ++i) ranges += i == 0 || mapped[i - 1].end != mapped[i].begin ? 1 : 0;
  return static_cast<double>(plan.new_pages) + stranded +
         driver_cost(plan.growths.size(), mapped.size(), ranges, plan.drops.size());
}

std::optional<BackingPlan> Placement::fill(const Window& window) const {
  BackingPlan plan{.range = window.range,
                   .begin = window.begin,
                   .end = window.end,
                   .drops = {},
                   .views = {},
                   .growths = {},
                   .moves = {}};
  std::vector<Stretch> unmapped;
  if (!take_mapped(window, plan, unmapped)) return std::nullopt;
  if (unmapped.empty()) return plan;
  std::vector<IdleRun> runs = sources(window, plan);
  for (const Stretch& stretch : unmapped) {
    drop_views_in(window, stretch, plan);
    tile(stretch, stretch.end >= window.end ? room_after(*window.range, stretch.end) : 0, runs, plan);
  }
  return plan;
}

// A window that shares no page with others and has room on both sides: it begins with the last pages of a handle, goes on
// with whole ones and ends with the first pages of another; or one run of idle pages is all it needs.
std::optional<BackingPlan> Placement::fill_far_away() const {
  const std::size_t wanted = (bytes_ + page_ - 1) / page_;
  PageRange* range = nullptr;
  for (auto& [base, candidate] : heap_.ranges()) {
    if (candidate.owner != arena_.pool.owner() || candidate.kind != arena_.pool.kind()) continue;
    const Address at = candidate.top + kSpacing * page_;
    if (candidate.tail != nullptr && at + (wanted + 2 * kSpacing) * page_ <= candidate.end()) range = &candidate;
  }
  if (range == nullptr) return std::nullopt;
  const Address at = range->top + kSpacing * page_;

  BackingPlan plan{
      .range = range, .begin = at, .end = at + bytes_, .drops = {}, .views = {}, .growths = {}, .moves = {}};
  std::vector<IdleRun> runs = idle_;
  IdleRun* single = nullptr;
  IdleRun* suffix = nullptr;
  for (IdleRun& run : runs) {
    if (run.begin > kSpacing || pages_.handle(run.handle).pages > kSpacing) continue;
    if (run.pages() >= wanted && (single == nullptr || run.pages() < single->pages())) single = &run;
    const bool is_suffix = run.end == pages_.handle(run.handle).pages && run.begin != 0 && run.pages() < wanted;
    if (is_suffix && (suffix == nullptr || run.pages() > suffix->pages())) suffix = &run;
  }
  if (single != nullptr) {
    place(*single, at, plan);
    return plan;
  }
  Stretch rest{at, at + wanted * page_};
  if (suffix != nullptr) {
    rest.begin += suffix->pages() * page_;
    place(*suffix, at, plan);
  }
  tile(rest, kSpacing, runs, plan);
  return plan;
}

// (1) Idle pages that are mapped where the window lacks memory; what is left to fill goes to `unmapped`. False: a view is in
// the way.
bool Placement::take_mapped(const Window& window, BackingPlan& plan, std::vector<Stretch>& unmapped) const {
  // A view that has to go for another slot of the window gives nothing; nor does one of a page that comes another way.
  std::vector<Address> going;
  bool may_go = true;
  const std::uint64_t coming = heap_.next_mark();
  const auto stays = [&](Address slot, PageId shown) {
    return shown != 0 && is_idle(shown, window) &&
           (going.empty() || std::find(going.begin(), going.end(), view_at(slot, shown)) == going.end());
  };
  const auto take = [&](Address slot, PageId shown) {
    if (stays(slot, shown)) {
      add_move(shown, slot, plan);
    } else if (!unmapped.empty() && unmapped.back().end == slot) {
      unmapped.back().end += page_;
    } else {
      unmapped.push_back({slot, slot + page_});
    }
  };
  for_each_lacking(window, [&](Address slot, PageId shown) {
    const bool comes = shown != 0 && is_idle(shown, window) && pages_.page(shown).taken != coming;
    if (comes) heap_.pages().take(shown, coming);
    if (!comes && shown != 0) {
      if (going.empty() || going.back() != view_at(slot, shown)) going.push_back(view_at(slot, shown));
      may_go = may_go && may_drop(slot, shown);
    }
    if (going.empty()) take(slot, shown);
  });
  if (!may_go || going.empty()) return may_go;
  plan.moves.clear();
  unmapped.clear();
  for_each_lacking(window, take);
  return true;
}

// A page comes home at the slot.
void Placement::add_move(PageId page, Address slot, BackingPlan& plan) const {
  if (!plan.moves.empty()) {
    BackingPlan::Move& last = plan.moves.back();
    const bool goes_on = last.first + last.count == page && last.to + last.count * page_ == slot &&
                         pages_.page(page).handle == pages_.page(last.first).handle;
    if (goes_on) {
      ++last.count;
      return;
    }
  }
  plan.moves.push_back({page, 1, slot});
}

// Idle pages that are not in the window and not taken by the plan.
std::vector<Placement::IdleRun> Placement::sources(const Window& window, const BackingPlan& plan) const {
  std::vector<PageId> taken;
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; i < move.count; ++i) taken.push_back(move.first + i);
  }
  for_each_slot(window, [&](Address slot, PageId shown) {
    if (has_memory(slot, shown) && pages_.page(shown).mark == mark_) taken.push_back(shown);
    return true;
  });
  std::sort(taken.begin(), taken.end());
  std::vector<IdleRun> runs;
  runs.reserve(idle_.size() + taken.size());
  auto next = taken.begin();
  for (const IdleRun& idle : idle_) {
    const PageId first = pages_.page_of(idle.handle, 0);
    std::uint32_t begin = idle.begin;
    while (next != taken.end() && *next < first + begin) ++next;
    for (; next != taken.end() && *next < first + idle.end; ++next) {
      const std::uint32_t index = *next - first;
      if (index > begin) runs.push_back({idle.handle, begin, index});
      begin = index + 1;
    }
    if (begin < idle.end) runs.push_back({idle.handle, begin, idle.end});
  }
  return runs;
}

void Placement::drop_views_in(const Window& window, const Stretch& stretch, BackingPlan& plan) const {
  for (Address slot = stretch.begin; slot < stretch.end; slot += page_) {
    const PageId shown = heap_.shown_at(*window.range, slot);
    if (shown == 0) continue;
    const Address view = view_at(slot, shown);
    const bool known = !plan.drops.empty() && plan.drops.back().at == view;
    if (!known) plan.drops.push_back({pages_.page(shown).handle, view});
  }
}

// Slots from `slot` on that no page is mapped at; as many as are of interest.
std::size_t Placement::room_after(const PageRange& range, Address slot) const {
  std::size_t room = 0;
  while (room < kSpacing && slot < range.end() && heap_.shown_at(range, slot) == 0) {
    slot += page_;
    ++room;
  }
  return room;
}

// Pages of a handle come to `at`, by a new view of it.
void Placement::place(IdleRun& run, Address at, BackingPlan& plan) const {
  plan.views.push_back({run.handle, at - run.begin * page_});
  plan.moves.push_back({pages_.page_of(run.handle, run.begin), run.pages(), at});
  run.end = run.begin;  // taken
}

// (2) and (3) for one stretch, behind which so many slots are free.
void Placement::tile(Stretch stretch, std::size_t room, std::vector<IdleRun>& runs, BackingPlan& plan) const {
  const auto slots = [&] { return static_cast<std::size_t>((stretch.end - stretch.begin) / page_); };
  // The smallest run of first pages that is enough for `wanted`; or the largest that is not.
  const auto first_pages = [&](std::size_t wanted, bool enough) {
    IdleRun* best = nullptr;
    for (IdleRun& run : runs) {
      const std::size_t pages = pages_.handle(run.handle).pages;
      if (run.begin != 0 || run.end == 0 || (run.end >= wanted) != enough) continue;
      if (enough ? pages > wanted + room : pages > run.end + room || is_whole(run)) continue;  // whole ones go anywhere
      if (best == nullptr || (enough ? run.end < best->end : run.end > best->end)) best = &run;
    }
    return best;
  };
  if (room != 0) {
    if (IdleRun* run = first_pages(slots(), true)) return place(*run, stretch.begin, plan);
  }
  IdleRun* last = room != 0 ? first_pages(slots(), false) : nullptr;
  const std::size_t last_pages = last != nullptr ? last->end : 0;
  stretch.end -= last_pages * page_;
  const IdleRun kept = last != nullptr ? *last : IdleRun{0, 0, 0};
  if (last != nullptr) last->end = last->begin;
  tile_whole(stretch, runs, plan);
  if (slots() != 0 && room != 0) {  // one that reaches beyond the window does for the rest and the last
    if (last != nullptr) last->end = kept.end;
    if (IdleRun* run = first_pages(slots() + kept.pages(), true)) return place(*run, stretch.begin, plan);
    if (last != nullptr) last->end = last->begin;
  }
  grow(stretch, plan);
  if (last == nullptr) return;
  last->end = kept.end;
  place(*last, stretch.end, plan);
}

// Whole idle handles, the largest first; and if these leave something, the combination that leaves least.
void Placement::tile_whole(Stretch& stretch, std::vector<IdleRun>& runs, BackingPlan& plan) const {
  std::vector<IdleRun*> whole;
  for (IdleRun& run : runs) {
    if (run.end != 0 && is_whole(run)) whole.push_back(&run);
  }
  std::stable_sort(whole.begin(), whole.end(), [](const IdleRun* a, const IdleRun* b) { return a->end > b->end; });
  const std::size_t wanted = (stretch.end - stretch.begin) / page_;
  std::vector<IdleRun*> chosen;
  std::size_t left = wanted;
  for (IdleRun* run : whole) {
    if (run->end > left) continue;
    chosen.push_back(run);
    left -= run->end;
  }
  if (left != 0 && chosen.size() != whole.size()) chosen = best_sum(whole, wanted);
  for (IdleRun* run : chosen) {
    const std::uint32_t pages = run->pages();
    place(*run, stretch.begin, plan);
    stretch.begin += pages * page_;
  }
}

// Of runs in the order of their sizes, those whose pages add up to the most that is not more than wanted.
std::vector<Placement::IdleRun*> Placement::best_sum(const std::vector<IdleRun*>& runs, std::size_t wanted) {
  constexpr std::uint32_t kUnreached = ~std::uint32_t{0};
  // By sum: the run that was added last to reach it. Each run is tried once: sums descend.
  std::vector<std::uint32_t> last(wanted + 1, kUnreached);
  std::vector<std::uint32_t> before(wanted + 1, 0);
  std::size_t most = 0;
  for (std::uint32_t i = 0; i < runs.size() && most < wanted; ++i) {
    const std::size_t pages = runs[i]->end;
    for (std::size_t sum = std::min(wanted, most + pages); sum >= pages; --sum) {
      const bool reached = sum == pages || last[sum - pages] != kUnreached;
      if (last[sum] != kUnreached || !reached) continue;
      last[sum] = i;
      before[sum] = static_cast<std::uint32_t>(sum - pages);
      most = std::max(most, sum);
    }
  }
  std::vector<IdleRun*> chosen;
  for (std::size_t sum = most; sum != 0; sum = before[sum]) chosen.push_back(runs[last[sum]]);
  return chosen;
}

void Placement::grow(const Stretch& stretch, BackingPlan& plan) const {
  for (Address at = stretch.begin; at < stretch.end;) {
    const std::size_t bytes = std::min(stretch.end - at, rules_.handle_bytes);
    plan.growths.push_back({at, static_cast<std::uint32_t>(bytes / page_)});
    plan.new_pages += bytes / page_;
    at += bytes;
  }
}

}  // namespace cachalot
