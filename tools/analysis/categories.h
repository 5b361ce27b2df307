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
#include <span>
#include <string_view>
#include <vector>

#include "tools/analysis/category_rules.h"
#include "tools/analysis/rule_matcher.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

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
