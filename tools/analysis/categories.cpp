#include "tools/analysis/categories.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>

#include "tools/analysis/before_recording.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools {
namespace {

using Means = CategoryRule::Means;

constexpr std::uint32_t kNoEvent = std::numeric_limits<std::uint32_t>::max();

// When the phases of a program began. A run is events in a row that the same phase made.
class Phases {
 public:
  void add(std::uint32_t event, Means phase) {
    if (phase == last_) return;
    last_ = phase;
    begins_.push_back(event);
    begins_of_[static_cast<std::size_t>(phase)].push_back(event);
  }

  // Returns the event with which the first run of another phase than that of `event` begins, or kNoEvent.
  std::uint32_t end_of_run_at(std::uint32_t event) const { return first_after(begins_, event); }
  // Returns the event with which the first run of `phase` behind `event` begins, or kNoEvent.
  std::uint32_t next(Means phase, std::uint32_t event) const {
    return first_after(begins_of_[static_cast<std::size_t>(phase)], event);
  }

 private:
  static std::uint32_t first_after(const std::vector<std::uint32_t>& begins, std::uint32_t event) {
    const auto after = std::ranges::upper_bound(begins, event);
    return after == begins.end() ? kNoEvent : *after;
  }

  Means last_ = Means::category;
  std::vector<std::uint32_t> begins_;
  std::array<std::vector<std::uint32_t>, 5> begins_of_;  // by phase
};

// Says what becomes of an allocation that a phase made, by its lifetime.
class Lifetimes {
 public:
  explicit Lifetimes(const Phases& phases) : phases_(phases) {}

  Category of(const Allocation& one, Means phase) const {
    switch (phase) {
      case Means::backward:
        return outlives_run(one) ? Category::gradients : Category::temporaries;
      case Means::optimizer:
        return outlives_run(one) ? Category::optimizer_state : Category::temporaries;
      case Means::setup:
        return lives_at(one, phases_.next(Means::forward, one.begin)) ? Category::parameters : Category::temporaries;
      case Means::forward:
        if (!lives_at(one, phases_.next(Means::backward, one.begin))) return Category::temporaries;
        return is_kept(one) ? Category::kept : Category::activations;
      case Means::category:
        break;
    }
    const bool is_saved = reaches(one, phases_.next(Means::backward, one.begin)) && !is_kept(one) && ends(one);
    return is_saved ? Category::activations : Category::unknown;
  }

  // Returns whether the history ends before it is known what becomes of the allocation.
  bool is_open(const Allocation& one, Means phase) const {
    if (ends(one) || phase == Means::category) return false;
    if (phase == Means::forward) return phases_.next(Means::backward, one.begin) == kNoEvent;
    if (phase == Means::setup) return phases_.next(Means::forward, one.begin) == kNoEvent;
    return phases_.end_of_run_at(one.begin) == kNoEvent;
  }

 private:
  static bool ends(const Allocation& one) { return one.end != Allocation::kNever; }
  static bool reaches(const Allocation& one, std::uint32_t event) { return event != kNoEvent && one.end > event; }
  static bool lives_at(const Allocation& one, std::uint32_t event) { return !ends(one) || reaches(one, event); }

  bool outlives_run(const Allocation& one) const { return lives_at(one, phases_.end_of_run_at(one.begin)); }

  bool is_kept(const Allocation& one) const {
    std::uint32_t event = one.begin;
    for (int pass = 0; pass < 2; ++pass) {
      event = phases_.next(Means::backward, event);
      if (event == kNoEvent) return false;
    }
    return reaches(one, phases_.end_of_run_at(event));
  }

  const Phases& phases_;
};

bool most_have_stacks(const DeviceHistory& device) {
  std::size_t with = 0;
  std::size_t without = 0;
  for (const HistoryEvent& event : device.events) {
    if (event.action == HistoryEvent::Action::alloc) ++(event.stack == 0 ? without : with);
  }
  return with > without;
}

// What one history's allocations are for. The rules say it of each, or the phase; then lifetimes decide.
class Judgement {
 public:
  Judgement(const History& history, const DeviceHistory& device, RuleMatcher& matcher)
      : stages_(history, device),
        rules_of_stages_(stages_.size()),
        matcher_(matcher),
        is_bare_backward_(most_have_stacks(device)) {
    for (std::size_t i = 0; i < device.events.size(); ++i) {
      const HistoryEvent& event = device.events[i];
      if (event.action != HistoryEvent::Action::alloc) continue;
      const Verdict verdict = verdict_on(event.stack, event.details, stages_.at(i));
      if (verdict.phase != Means::category) phases_.add(static_cast<std::uint32_t>(i), verdict.phase);
    }
  }

  std::vector<Category> of(std::span<const Allocation> allocations, std::size_t stacks) {
    const Lifetimes lifetimes(phases_);
    std::vector<Category> categories;
    std::vector<std::array<std::uint32_t, 2>> votes(stacks);  // of what ended: temporaries, and all others
    std::vector<std::size_t> open;
    categories.reserve(allocations.size());
    for (const Allocation& one : allocations) {
      const Verdict verdict = verdict_on(one);
      categories.push_back(verdict.category);
      if (verdict.category != Category::unknown || one.begin == Allocation::kBefore) continue;
      categories.back() = lifetimes.of(one, verdict.phase);
      if (lifetimes.is_open(one, verdict.phase)) {
        open.push_back(categories.size() - 1);
      } else {
        ++votes[one.stack][categories.back() == Category::temporaries ? 0 : 1];
      }
    }
    for (const std::size_t i : open) {
      const auto& [temporary, lasting] = votes[allocations[i].stack];
      if (temporary > lasting) categories[i] = Category::temporaries;
    }
    return categories;
  }

 private:
  struct Verdict {
    Category category = Category::unknown;
    Means phase = Means::category;
  };

  Verdict verdict_on(const Allocation& one) {
    const bool is_before = one.begin == Allocation::kBefore;
    if (is_before && one.stack == 0 && one.details == 0) return {};
    Verdict verdict = verdict_on(one.stack, one.details, is_before ? 0 : stages_.at(one.begin));
    if (is_before && verdict.phase == Means::setup) verdict = {.category = Category::parameters};
    if (is_before && verdict.phase == Means::optimizer) verdict = {.category = Category::optimizer_state};
    return verdict;
  }

  Verdict verdict_on(StackId stack, DetailsId details, StageId stage) {
    const CategoryRule* rule = matcher_.for_details(details);
    if (rule == nullptr) rule = matcher_.for_stack(stack);
    if (rule == nullptr && stack == 0 && is_bare_backward_) return {.phase = Means::backward};
    if (rule == nullptr) rule = rule_of(stage);
    if (rule == nullptr) return {};
    return {.category = rule->means == Means::category ? rule->category : Category::unknown, .phase = rule->means};
  }

  const CategoryRule* rule_of(StageId stage) {
    std::optional<const CategoryRule*>& known = rules_of_stages_[stage];
    if (!known) known = matcher_.for_stage(stages_, stage);
    return *known;
  }

  Stages stages_;
  std::vector<std::optional<const CategoryRule*>> rules_of_stages_;  // nullopt: not asked for yet
  RuleMatcher& matcher_;
  bool is_bare_backward_;
  Phases phases_;
};

}  // namespace

std::vector<Category> Categorizer::categories_of(const DeviceHistory& device, std::span<const Allocation> allocations) {
  std::vector<Category> categories = Judgement(history_, device, matcher_).of(allocations, history_.stacks.size());
  name_what_was_before(allocations, categories);
  return categories;
}

}  // namespace cachalot::tools
