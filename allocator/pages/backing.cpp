#include "pages/backing.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

CACHALOT_BEGIN

namespace {

// Slots left free between mapped slots and a window far away, so that both can reach on.
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

void Backing::begin_search(const PoolPair& pools, const PlacementRules& rules) {
  rules_ = rules;
  knows_sources_ = false;
  slots_.begin_search(rules.may_drop);
  if (!rules.may_move) {
    idle_.clear();
  } else if (rules.goes_on) {
    idle_.find_more();
  } else {
    idle_.find(pools);
  }
}

// --- the missing memory of a window -----------------------------------------------------------------------------------

template <typename Visit>
void Backing::for_each_slot(const Window& window, Visit visit) const {
  const Vector<PageId>& shown = window.range->shown;
  Address slot = grid_.down(window.begin);
  for (std::size_t i = grid_.whole_in(slot - window.range->base); slot < window.end; ++i, slot += page_) {
    if (!visit(slot, i < shown.size() ? shown[i] : PageId{0})) return;
  }
}

template <typename Visit>
void Backing::for_each_lacking(const Window& window, Visit visit) const {
  for_each_slot(window, [&](Address slot, PageId shown) {
    if (!slots_.has_memory(slot, shown)) visit(slot, shown);
    return true;
  });
}

std::size_t Backing::slots_without_memory(const Window& window) const {
  std::size_t slots = 0;
  for_each_lacking(window, [&](Address, PageId) { ++slots; });
  return slots;
}

bool Backing::is_idle(PageId id, const Window& window) const {
  if (id == PageHeap::kBlocked || !idle_.has(id)) return false;
  const Address home = pages_.page(id).home;
  return home >= window.end || home + page_ <= window.begin;
}

double Backing::Lack::least_cost() const { return driver_cost(0, stretches, stretches, drops); }

std::optional<Backing::Lack> Backing::lack_of(const Window& window, double stranded, double cost_below) {
  const PageRange& range = *window.range;
  Lack lack;
  Address end_of_stretch = 0;
  Address dropped = 0;
  Address slot = grid_.down(window.begin);
  for (std::size_t i = grid_.whole_in(slot - range.base); slot < window.end; ++i, slot += page_) {
    SlotKind kind = slots_.kind(range, i, slot);
    if (kind == SlotKind::memory) continue;
    ++lack.slots;
    if (kind == SlotKind::idle) {
      if (is_idle(range.shown[i], window)) continue;
      kind = slots_.kind_in_the_way(slot, range.shown[i]);
    }
    if (kind == SlotKind::blocked) return std::nullopt;
    const std::size_t calls = lack.drops + lack.stretches;
    if (kind == SlotKind::stale) {
      const Address view = slots_.view_at(slot, range.shown[i]);
      if (view != dropped) ++lack.drops;
      dropped = view;
    }
    ++lack.to_map;
    if (slot != end_of_stretch) ++lack.stretches;
    end_of_stretch = slot + page_;
    const bool has_more_calls = lack.drops + lack.stretches != calls;
    if (has_more_calls && stranded + lack.least_cost() >= cost_below) return std::nullopt;
  }
  return lack;
}

// At best the longest sources do, which saves new pages and so costs less than these. Only what is in the way can join
// stretches of the window into one.
double Backing::lower_bound(const Lack& lack, double stranded) {
  if (lack.to_map == 0) return stranded;
  find_sources();
  std::size_t maps = 0;
  std::size_t pages = 0;
  while (pages < lack.to_map && maps < sources_.size()) pages += sources_[maps++].pages();
  const std::size_t new_pages = lack.to_map - std::min(pages, lack.to_map);
  const std::size_t creates = (new_pages * page_ + rules_.handle_bytes - 1) / rules_.handle_bytes;
  const std::size_t stretches = lack.drops == 0 ? lack.stretches : 1;
  return static_cast<double>(new_pages) + stranded +
         driver_cost(creates, std::max(maps + creates, stretches), stretches, lack.drops);
}

// --- where idle pages are ---------------------------------------------------------------------------------------------

void Backing::find_sources() {
  if (knows_sources_) return;
  knows_sources_ = true;
  runs_.clear();
  longer_.clear();
  std::uint32_t handle_pages = 1;
  idle_.for_each_run(pages_, [&](const IdleRun& run) {
    runs_.push_back(run);
    if (run.begin != 0) return;
    handle_pages = std::max(handle_pages, run.handle_pages);
    if (longer_.size() < run.end) longer_.resize(run.end);
    ++longer_[run.end - 1];
  });
  most_room_ = std::min<std::size_t>(kSpacing, handle_pages);
  std::uint32_t longer = 0;  // sorted by counting
  for (auto count = longer_.rbegin(); count != longer_.rend(); ++count) longer += std::exchange(*count, longer);
  sources_.resize(longer);
  source_of_.resize(pages_.handle_ids());
  for (const IdleRun& run : runs_) {
    if (run.begin != 0) continue;
    source_of_[run.handle] = longer_[run.end - 1];
    sources_[longer_[run.end - 1]++] = run;
  }
}

void Backing::take_all_sources() {
  find_sources();
  left_ = sources_;
}

// Takes the sources outside the window: without those that the plan has taken and those in the window already.
void Backing::take_sources_outside(const Window& window) {
  take_all_sources();
  for (const BackingPlan::Move& move : plan_.moves) end_source_before(move.first);
  for_each_slot(window, [&](Address slot, PageId shown) {
    if (slots_.has_memory(slot, shown)) end_source_before(shown);
    return true;
  });
}

void Backing::end_source_before(PageId id) {
  const PhysicalPage& page = pages_.page(id);
  const std::uint32_t at = source_of_[page.handle];
  if (at >= left_.size() || left_[at].handle != page.handle) return;
  left_[at].end = std::min(left_[at].end, page.index);
}

// --- filling a window -------------------------------------------------------------------------------------------------

void Backing::begin_plan(const Window& window) {
  plan_.range = window.range;
  plan_.begin = window.begin;
  plan_.end = window.end;
  plan_.drops.clear();
  plan_.views.clear();
  plan_.growths.clear();
  plan_.moves.clear();
  plan_.new_pages = 0;
}

bool Backing::fill(const Window& window, double stranded) {
  begin_plan(window);
  if (!take_mapped(window)) return false;
  if (!unmapped_.empty()) take_sources_outside(window);
  for (const Stretch& stretch : unmapped_) {
    drop_views_in(*window.range, stretch);
    tile(stretch, stretch.end >= window.end ? room_after(*window.range, stretch.end) : 0);
  }
  plan_.cost = cost_of_plan(stranded);
  return true;
}

// It begins with the last pages of a handle, goes on with whole ones and ends with the first pages of another; or one run of
// idle pages is all it needs.
bool Backing::fill_far_away(const Arena& arena, std::size_t bytes, double stranded) {
  const std::size_t wanted = grid_.whole_in(grid_.up(bytes));
  PageRange* range = nullptr;
  for (auto& [base, candidate] : heap_.ranges()) {
    if (candidate.owner != arena.pool.owner() || candidate.kind != arena.pool.kind()) continue;
    const Address at = candidate.top + kSpacing * page_;
    if (candidate.tail != nullptr && at + (wanted + 2 * kSpacing) * page_ <= candidate.end()) range = &candidate;
  }
  if (range == nullptr) return false;
  const Address at = range->top + kSpacing * page_;

  begin_plan({range, at, at + bytes});
  take_all_sources();
  IdleRun* single = nullptr;
  IdleRun* suffix = nullptr;
  for (IdleRun& run : runs_) {
    if (run.begin > kSpacing || run.handle_pages > kSpacing) continue;
    if (run.pages() >= wanted && (single == nullptr || run.pages() < single->pages())) single = &run;
    const bool is_suffix = run.end == run.handle_pages && run.begin != 0 && run.pages() < wanted;
    if (is_suffix && (suffix == nullptr || run.pages() > suffix->pages())) suffix = &run;
  }
  Stretch rest{at, at + wanted * page_};
  if (IdleRun* run = single != nullptr ? single : suffix) {
    IdleRun taken = *run;
    rest.begin += taken.pages() * page_;
    place(taken, at);
  }
  if (single == nullptr) tile(rest, kSpacing);
  plan_.cost = cost_of_plan(stranded);
  return true;
}

// (1) Idle pages that are mapped where the window lacks memory; the rest to fill goes to unmapped_. Returns false if a view
// is in the way.
bool Backing::take_mapped(const Window& window) {
  // A view that has to go for another slot of the window gives nothing; nor does one of a page that comes another way.
  going_.clear();
  unmapped_.clear();
  bool may_go = true;
  const std::uint64_t coming = heap_.next_mark();
  std::size_t gone = 0;  // views that go and end before the slot: both come by address
  const auto stays = [&](Address slot, PageId shown) {
    if (shown == 0 || !is_idle(shown, window)) return false;
    const Address view = slots_.view_at(slot, shown);
    while (gone != going_.size() && going_[gone] < view) ++gone;
    return gone == going_.size() || going_[gone] != view;
  };
  const auto take = [&](Address slot, PageId shown) {
    if (stays(slot, shown)) {
      add_move(shown, slot);
    } else if (!unmapped_.empty() && unmapped_.back().end == slot) {
      unmapped_.back().end += page_;
    } else {
      unmapped_.push_back({slot, slot + page_});
    }
  };
  for_each_lacking(window, [&](Address slot, PageId shown) {
    const bool comes = shown != 0 && is_idle(shown, window) && pages_.page(shown).taken != coming;
    if (comes) heap_.pages().take(shown, coming);
    if (!comes && shown != 0) {
      if (going_.empty() || going_.back() != slots_.view_at(slot, shown)) going_.push_back(slots_.view_at(slot, shown));
      may_go = may_go && slots_.may_drop(slot, shown);
    }
    if (going_.empty()) take(slot, shown);
  });
  if (!may_go || going_.empty()) return may_go;
  plan_.moves.clear();
  unmapped_.clear();
  for_each_lacking(window, take);
  return true;
}

// A page comes home at the slot.
void Backing::add_move(PageId page, Address slot) {
  if (!plan_.moves.empty()) {
    BackingPlan::Move& last = plan_.moves.back();
    const bool goes_on = last.first + last.count == page && last.to + last.count * page_ == slot &&
                         pages_.page(page).handle == pages_.page(last.first).handle;
    if (goes_on) {
      ++last.count;
      return;
    }
  }
  plan_.moves.push_back({page, 1, slot});
}

void Backing::drop_views_in(const PageRange& range, const Stretch& stretch) {
  for (Address slot = stretch.begin; slot < stretch.end; slot += page_) {
    const PageId shown = heap_.shown_at(range, slot);
    if (shown == 0) continue;
    const Address view = slots_.view_at(slot, shown);
    const bool known = !plan_.drops.empty() && plan_.drops.back().at == view;
    if (!known) plan_.drops.push_back({pages_.page(shown).handle, view});
  }
}

// Slots from `slot` on that no page is mapped at; as many as are of interest.
std::size_t Backing::room_after(const PageRange& range, Address slot) const {
  std::size_t room = 0;
  while (room < most_room_ && slot < range.end() && heap_.shown_at(range, slot) == 0) {
    slot += page_;
    ++room;
  }
  return room;
}

// Pages of a handle come to `at`, by a new view of it.
void Backing::place(IdleRun& run, Address at) {
  plan_.views.push_back({run.handle, at - run.begin * page_});
  plan_.moves.push_back({run.first_of_handle + run.begin, run.pages(), at});
  run.end = run.begin;  // taken
}

// Returns the smallest run of first pages that is enough for `wanted`; or the largest that is not. `room` slots are free
// behind.
IdleRun* Backing::first_pages(std::size_t wanted, std::size_t room, bool enough) {
  IdleRun* best = nullptr;
  for (IdleRun& run : left_) {
    if (run.end == 0 || (run.end >= wanted) != enough) continue;
    const bool fits = enough ? run.handle_pages <= wanted + room : run.handle_pages <= run.end + room;
    if (!fits || (!enough && run.is_whole())) continue;  // whole ones go anywhere
    const bool is_better = best == nullptr || (enough ? run.end < best->end : run.end > best->end);
    const bool is_first_of_equals =
        best != nullptr && run.end == best->end && run.first_of_handle < best->first_of_handle;
    if (is_better || is_first_of_equals) best = &run;
  }
  return best;
}

// (2) and (3) for one stretch, behind which `room` slots are free.
void Backing::tile(Stretch stretch, std::size_t room) {
  const auto slots = [&] { return static_cast<std::size_t>(grid_.whole_in(stretch.end - stretch.begin)); };
  if (room != 0) {
    if (IdleRun* run = first_pages(slots(), room, true)) return place(*run, stretch.begin);
  }
  IdleRun* last = room != 0 ? first_pages(slots(), room, false) : nullptr;
  const std::uint32_t last_pages = last != nullptr ? last->end : 0;
  stretch.end -= last_pages * page_;
  if (last != nullptr) last->end = 0;
  tile_whole(stretch);
  if (slots() != 0 && room != 0) {  // one that reaches beyond the window does for the rest and the last
    if (last != nullptr) last->end = last_pages;
    if (IdleRun* run = first_pages(slots() + last_pages, room, true)) return place(*run, stretch.begin);
    if (last != nullptr) last->end = 0;
  }
  grow(stretch);
  if (last == nullptr) return;
  last->end = last_pages;
  place(*last, stretch.end);
}

// Whole idle handles, the largest first; and if these leave something, the combination that leaves least.
void Backing::tile_whole(Stretch& stretch) {
  const std::size_t wanted = grid_.whole_in(stretch.end - stretch.begin);
  std::size_t left = wanted;
  whole_.clear();
  chosen_.clear();
  for (IdleRun& run : left_) {
    if (left == 0) break;
    if (run.end == 0 || !run.is_whole()) continue;
    whole_.push_back(&run);
    if (run.end > left) continue;
    chosen_.push_back(&run);
    left -= run.end;
  }
  if (left != 0 && chosen_.size() != whole_.size()) choose_best_sum(wanted);
  for (IdleRun* run : chosen_) {
    const std::uint32_t pages = run->pages();
    place(*run, stretch.begin);
    stretch.begin += pages * page_;
  }
}

// Chooses, of the whole runs, those whose pages add up to the most that is not more than wanted.
void Backing::choose_best_sum(std::size_t wanted) {
  constexpr std::uint32_t kUnreached = ~std::uint32_t{0};
  // By sum: the run that was added last to reach it. Each run is tried once: sums descend.
  last_.assign(wanted + 1, kUnreached);
  before_.assign(wanted + 1, 0);
  std::size_t most = 0;
  for (std::uint32_t i = 0; i < whole_.size() && most < wanted; ++i) {
    const std::size_t pages = whole_[i]->end;
    for (std::size_t sum = std::min(wanted, most + pages); sum >= pages; --sum) {
      const bool reached = sum == pages || last_[sum - pages] != kUnreached;
      if (last_[sum] != kUnreached || !reached) continue;
      last_[sum] = i;
      before_[sum] = static_cast<std::uint32_t>(sum - pages);
      most = std::max(most, sum);
    }
  }
  chosen_.clear();
  for (std::size_t sum = most; sum != 0; sum = before_[sum]) chosen_.push_back(whole_[last_[sum]]);
}

void Backing::grow(const Stretch& stretch) {
  for (Address at = stretch.begin; at < stretch.end;) {
    const std::size_t bytes = std::min(stretch.end - at, rules_.handle_bytes);
    plan_.growths.push_back({at, static_cast<std::uint32_t>(grid_.whole_in(bytes))});
    plan_.new_pages += grid_.whole_in(bytes);
    at += bytes;
  }
}

double Backing::cost_of_plan(double stranded) {
  mapped_.clear();
  for (const BackingPlan::Growth& growth : plan_.growths) {
    mapped_.push_back({growth.at, growth.at + growth.pages * page_});
  }
  for (const BackingPlan::Mapping& view : plan_.views) {
    mapped_.push_back({view.at, view.at + pages_.bytes(pages_.handle(view.handle))});
  }
  std::sort(mapped_.begin(), mapped_.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  std::size_t ranges = 0;
  for (std::size_t i = 0; i < mapped_.size(); ++i) ranges += i == 0 || mapped_[i - 1].end != mapped_[i].begin ? 1 : 0;
  return static_cast<double>(plan_.new_pages) + stranded +
         driver_cost(plan_.growths.size(), mapped_.size(), ranges, plan_.drops.size());
}

CACHALOT_END
