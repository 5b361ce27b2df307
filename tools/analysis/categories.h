// What each allocation of a history is for. Rules (category_rules.h) tell it by call stacks, tags and stages, and where they
// tell a phase of the program, the allocation's lifetime does.
//
//   forward    still there when a backward pass begins: activation; after two of them: kept; otherwise temporary
//   backward   still there when something else than a backward pass allocates: gradient; otherwise temporary
//   optimizer  still there when something else than an optimizer allocates: optimizer state; otherwise temporary
//   setup      still there when a forward pass begins: parameter; otherwise temporary
//
// Of what lives at the end of the history the first is taken. A call stack without frames, where others have some, is that of
// autograd's thread, which runs no Python.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <span>
#include <string_view>
#include <vector>

#include "tools/analysis/category_rules.h"
#include "tools/analysis/timeline.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// Finds the rule that says what memory of a call stack, of a tag or of a stage is for.

// Remembers what it has found of frames, stacks and tags: each of the history is searched once. Not thread-safe.
class RuleMatcher {
 public:
  RuleMatcher(const History& history, const CategoryRules& rules);

  // Return the rule, or nullptr.
  const CategoryRule* for_stack(StackId stack);
  const CategoryRule* for_details(DetailsId details);
  const CategoryRule* for_stage(const Stages& stages, StageId stage) const;  // not remembered

 private:
  static constexpr int kNotYet = -2;
  static constexpr int kNone = -1;
  struct Found {
    int anywhere = kNotYet;  // index of the rule
    int otherwise = kNotYet;
  };

  Found of_frame(FrameId frame);
  int search_stack(StackId stack);
  int search_tag(std::string_view tag) const;
  bool describes(std::size_t rule, const StackFrame& frame) const;
  bool finds(std::size_t rule, std::string_view text) const;
  const CategoryRule* rule(int index) const {
    return index < 0 ? nullptr : &rules_.rules[static_cast<std::size_t>(index)];
  }

  const History& history_;
  const CategoryRules& rules_;
  std::vector<std::regex> regexes_;  // by rule; empty ones are not used
  std::vector<Found> frames_;
  std::vector<int> stacks_;
  std::vector<int> details_;
};

// Not thread-safe: it remembers what the rules say of each call stack. The history and the rules must outlive it.
class Categorizer {
 public:
  Categorizer(const History& history, const CategoryRules& rules)
      : history_(history), rules_(rules), matcher_(history, rules) {}

  // Returns the category of each of the allocations of `device` (allocations_of).
  std::vector<Category> categories_of(const DeviceHistory& device, std::span<const Allocation> allocations);

  std::string_view name_of(Category category) const { return rules_.names[static_cast<std::size_t>(category)]; }

 private:
  const History& history_;
  const CategoryRules& rules_;
  RuleMatcher matcher_;
};

}  // namespace cachalot::tools
