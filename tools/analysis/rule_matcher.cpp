#include "tools/analysis/rule_matcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "tools/analysis/glob.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kMostOfAText = 500;  // that a regular expression is searched in

#ifdef __GLIBCXX__
constexpr auto kBreadthFirst = std::regex_constants::__polynomial;
#else
constexpr auto kBreadthFirst = std::regex_constants::ECMAScript;
#endif

std::regex compiled(const std::string& pattern) {
  if (pattern.empty()) return {};
  try {
    return std::regex(pattern, std::regex_constants::ECMAScript | kBreadthFirst);
  } catch (const std::regex_error& error) {
    CACHALOT_REQUIRE(false, "regex {} of a rule is not valid: {}", fmt::format("{}", Quoted{pattern}), error.what());
  }
  return {};
}

bool any_matches(const std::vector<std::string>& globs, std::string_view text) {
  return std::ranges::any_of(globs, [&](const std::string& glob) { return matches_glob(glob, text); });
}

}  // namespace

RuleMatcher::RuleMatcher(const History& history, const CategoryRules& rules)
    : history_(history),
      rules_(rules),
      frames_(history.stacks.frame_count()),
      stacks_(history.stacks.size(), kNotYet),
      details_(history.details.size(), kNotYet) {
  for (const CategoryRule& rule : rules.rules) regexes_.push_back(compiled(rule.regex));
}

const CategoryRule* RuleMatcher::for_stack(StackId stack) {
  int& found = stacks_[stack];
  if (found == kNotYet) found = search_stack(stack);
  return rule(found);
}

const CategoryRule* RuleMatcher::for_details(DetailsId details) {
  int& found = details_[details];
  if (found == kNotYet) {
    found = search_tag(history_.texts[history_.details[details].user_metadata]);
    if (found == kNone) found = search_tag(history_.texts[history_.details[details].internal_metadata]);
  }
  return rule(found);
}

const CategoryRule* RuleMatcher::for_stage(const Stages& stages, StageId stage) const {
  const std::vector<TextId>& open = stages.open(stage);
  for (auto name = open.rbegin(); name != open.rend(); ++name) {
    const std::string_view text = history_.texts[*name];
    for (const CategoryRule& rule : rules_.rules) {
      if (any_matches(rule.stages, text)) return &rule;
    }
  }
  return nullptr;
}

int RuleMatcher::search_stack(StackId stack) {
  int first = kNone;
  int anywhere = kNone;
  for (const FrameId frame : history_.stacks[stack]) {  // the newest call first
    const Found found = of_frame(frame);
    if (first == kNone) first = found.otherwise;
    if (found.anywhere != kNone && (anywhere == kNone || found.anywhere < anywhere)) anywhere = found.anywhere;
  }
  return anywhere != kNone ? anywhere : first;
}

RuleMatcher::Found RuleMatcher::of_frame(FrameId frame) {
  Found& found = frames_[frame];
  if (found.anywhere != kNotYet) return found;
  found = {.anywhere = kNone, .otherwise = kNone};
  for (std::size_t i = 0; i < rules_.rules.size(); ++i) {
    const bool is_anywhere = rules_.rules[i].is_anywhere || !rules_.rules[i].regex.empty();
    int& first = is_anywhere ? found.anywhere : found.otherwise;
    if (first == kNone && describes(i, history_.stacks.frame(frame))) first = static_cast<int>(i);
  }
  return found;
}

bool RuleMatcher::describes(std::size_t index, const StackFrame& frame) const {
  const CategoryRule& rule = rules_.rules[index];
  const std::string_view file = history_.texts[frame.file];
  const std::string_view function = history_.texts[frame.function];
  if (!rule.regex.empty()) return finds(index, fmt::format("{}:{}", file, function));
  if (rule.files.empty() && rule.functions.empty()) return false;
  return (rule.files.empty() || any_matches(rule.files, file)) &&
         (rule.functions.empty() || any_matches(rule.functions, function));
}

int RuleMatcher::search_tag(std::string_view tag) const {
  if (tag.empty()) return kNone;
  for (std::size_t i = 0; i < rules_.rules.size(); ++i) {
    if (any_matches(rules_.rules[i].tags, tag) || (!rules_.rules[i].regex.empty() && finds(i, tag)))
      return static_cast<int>(i);
  }
  return kNone;
}

bool RuleMatcher::finds(std::size_t index, std::string_view text) const {
  text = text.substr(0, kMostOfAText);
  return std::regex_search(text.begin(), text.end(), regexes_[index]);
}

}  // namespace cachalot::tools
