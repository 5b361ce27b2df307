#include "pages/placement.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

CACHALOT_BEGIN

namespace {

// Windows that are filled before the best is taken: a bound on the time spent.
constexpr std::size_t kTries = 16;
// The gaps whose holes are looked at: likewise. No recorded program reaches this number.
constexpr std::size_t kMostGaps = 1024;
constexpr std::size_t kAhead = 8;  // gaps that are fetched before their turn
constexpr std::size_t kNone = ~std::size_t{0};

}  // namespace

std::optional<BackingPlan> Placement::best(const Arena& arena, const PoolPair& pools, std::size_t bytes,
                                           const PlacementRules& rules) {
  arena_ = &arena;
  bytes_ = bytes;
  pages_wanted_ = static_cast<double>(bytes) / static_cast<double>(grid_.bytes());
  rules_ = rules;
  backing_.begin_search(pools, rules);
  find_windows();
  search();
  if (!has_best_) return std::nullopt;
  backing_.find_holders(best_);
  return best_;
}

// --- windows ----------------------------------------------------------------------------------------------------------

void Placement::find_windows() {
  candidates_.clear();
  groups_.clear();
  for (auto& [base, range] : heap_.ranges()) {
    if (range.owner != arena_->pool.owner() || range.kind != arena_->pool.kind()) continue;
    find_windows_of(range);
  }
}

// Finds the windows of a range. If its gaps are too many to look at all of them, the search goes on behind the last
// ones, and always looks at the range's end.
void Placement::find_windows_of(PageRange& range) {
  const Gaps& gaps = range.gaps;
  const bool all = gaps.count() <= kMostGaps;
  std::size_t index = all ? 0 : gaps.first_from(range.next_gap);
  Address seen = range.base;  // the end of the last hole, which may have several gaps
  for (std::size_t left = std::min(gaps.count(), kMostGaps); left != 0; --left, ++index) {
    if (index == gaps.count()) {
      index = 0;
      seen = range.base;
    }
    if (index + kAhead < gaps.count()) __builtin_prefetch(gaps[index + kAhead].block);
    if (index + kAhead / 2 < gaps.count()) gaps[index + kAhead / 2].block->prefetch_neighbours();
    if (gaps[index].address >= seen) seen = add_windows(range, *gaps[index].block);
  }
  if (all) return;
  range.next_gap = index < gaps.count() ? gaps[index].address : range.base;
  if (range.tail != nullptr) add_windows(range, *range.tail);
}

// Adds the windows of the hole with this first gap; returns the hole's end.
Address Placement::add_windows(PageRange& range, Block& first_gap) {
  const auto may_hold = [](const Block& block) {
    return block.is_gap() || (block.is_free() && block.arena->may_use(block));
  };
  Block* first = &first_gap;
  while (may_hold(*first->prev)) first = first->prev;
  Block* last = &first_gap;
  while (may_hold(*last->next)) last = last->next;
  const bool endless = last == range.tail;
  const Address end = last->end();
  if (end - first->address < bytes_) return end;
  for (Block* piece = first; bytes_ <= end - piece->address; piece = piece->next) {
    add_window(range, *piece, piece->address, endless);
    if (piece == last) break;
  }
  if (endless) {
    const Address begin = std::max(range.top, last->address);
    if (begin != last->address && bytes_ <= end - begin) add_window(range, *last, begin, true);
  } else {
    const Address begin = end - bytes_;
    while (last->address > begin) last = last->prev;
    add_window(range, *last, begin, false);
  }
  return end;
}

// `holder` is the block or gap that holds `begin`.
void Placement::add_window(PageRange& range, const Block& holder, Address begin, bool endless) {
  const Window window{&range, begin, begin + bytes_};
  const std::size_t pages = rules_.may_move ? pages_taken(window) : slots_without_memory(window, holder);
  candidates_.push_back({window, group_of(window), pages, endless && window.end > range.tail->address});
}

// Windows come in the order of their addresses.
std::size_t Placement::group_of(const Window& window) {
  const Address begin = grid_.down(window.begin);
  const Address end = grid_.up(window.end);
  const bool joins = !groups_.empty() && groups_.back().range == window.range && groups_.back().begin <= begin &&
                     begin <= groups_.back().end;
  if (!joins) groups_.push_back({window.range, begin, begin, std::nullopt});
  groups_.back().end = std::max(groups_.back().end, end);
  return groups_.size() - 1;
}

// Returns the pages that a window takes for itself: those it fills, and those it only keeps from others. All within a hole are
// idle or lacking, except those at its ends, which may be partly live.
std::size_t Placement::pages_taken(const Window& window) const {
  const Address first = grid_.down(window.begin);
  const Address last = grid_.down(window.end);
  std::size_t pages = grid_.whole_in(grid_.up(window.end) - first);
  if (first != window.begin && backing_.is_live(*window.range, first)) --pages;
  const bool is_first = last == first && first != window.begin;
  if (last != window.end && !is_first && backing_.is_live(*window.range, last)) --pages;
  return pages;
}

// Gaps are made of whole slots.
std::size_t Placement::slots_without_memory(const Window& window, const Block& holder) const {
  const Address first = grid_.down(window.begin);
  const Address last = grid_.up(window.end);
  std::size_t slots = 0;
  for (const Block* block = &holder;; block = block->next) {
    if (block->is_gap()) slots += grid_.whole_in(std::min(block->end(), last) - std::max(block->address, first));
    if (block->end() >= window.end) return slots;
  }
}

// Returns the fewest pages that a window takes, from `at_least` on; kNone: all take fewer.
std::size_t Placement::fewest_pages(std::size_t at_least) const {
  std::size_t fewest = kNone;
  for (const Candidate& candidate : candidates_) {
    if (candidate.pages >= at_least) fewest = std::min(fewest, candidate.pages);
  }
  return fewest;
}

// --- the best ---------------------------------------------------------------------------------------------------------

// Searches the plans that cost less than the rules want: in the order of what they strand, then of addresses. Few numbers of
// pages differ.
void Placement::search() {
  tries_ = 0;
  cost_below_ = rules_.cost_below;
  has_best_ = false;
  for (std::size_t pages = fewest_pages(0); pages != kNone; pages = fewest_pages(pages + 1)) {
    if (least_cost(pages) >= cost_below_) return;
    for (const Candidate& candidate : candidates_) {
      if (candidate.pages == pages) consider(candidate);
    }
  }
}

// Returns what a window that takes `pages` pages costs at least: those that are not idle are new.
double Placement::least_cost(std::size_t pages) const {
  const std::size_t idle_pages = backing_.idle().count();
  return pages > idle_pages ? backing_.cost_of_new(pages - idle_pages, stranded_by(pages)) : stranded_by(pages);
}

// Windows that cannot be better than the best so far are not filled. Once the tries have run out the first that serves will do.
void Placement::consider(const Candidate& candidate) {
  if (least_cost(candidate.pages) >= cost_below_) return;
  const std::optional<Lack> lack = backing_.lack_of(candidate.window, groups_[candidate.group]);
  if (!lack || (!rules_.may_grow && lack->slots > backing_.idle().count())) return;
  if (++tries_ > kTries && !candidate.at_end && has_best_) return;
  const double stranded = stranded_by(candidate.pages);
  if (backing_.lower_bound(*lack, stranded) >= cost_below_) return;
  if (backing_.fill(candidate.window, stranded)) keep_if_better();
}

void Placement::keep_if_better() {
  BackingPlan& plan = backing_.plan();
  if ((!rules_.may_grow && plan.new_pages != 0) || plan.cost >= cost_below_) return;
  std::swap(best_, plan);
  cost_below_ = best_.cost;
  has_best_ = true;
}

CACHALOT_END
