// Finds the rule that says what memory of a call stack, of a tag or of a stage is for.
#pragma once

#include <optional>
#include <regex>
#include <string_view>
#include <vector>

#include "tools/analysis/category_rules.h"
#include "tools/analysis/timeline.h"
#include "tools/history/history.h"

namespace cachalot::tools {

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

}  // namespace cachalot::tools
