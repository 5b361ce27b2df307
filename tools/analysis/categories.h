// Rules that say by a call stack, a tag or a stage what memory is for.
//
// They are JSON: {"rules": [{"means": ..., "files": [...], "functions": [...], "tags": [...], "stages": [...]}, ...]}. `files`,
// `functions`, `tags` and `stages` are globs, with `*` alone. A rule with `files` and `functions` asks for one frame that has
// both. `means` is a category, or a phase of the program, where lifetimes decide: what a forward pass makes is an activation if
// it is still there when the backward pass begins. A frame of a newer call decides before an older one; of the rules for one
// frame the first. A rule with "anywhere": true comes before all those, whichever frame it describes. One with "weak": true says that
// memory may be that of parameters: its size decides, beside those of the gradients.
//
// A user's rules may have {"category": "any name", "regex": "..."} as well. The expression is searched in "file:function" of each
// frame, and in tags. libstdc++'s breadth-first matcher runs it, so that its time is that of text times pattern; it knows no
// back references. Repetitions with counts are refused, because they multiply the pattern.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/timeline.h"
#include "tools/base/input_file.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// Patterns of file names and functions: `*` stands for any characters, everything else for itself.
// Returns whether the pattern describes the whole text. Takes time of at most the product of the two lengths.
bool matches_glob(std::string_view pattern, std::string_view text);

// The purposes of memory: the kinds of docs/tools/simulate.md. Larger values are the categories of a user's rules.
enum class Category : std::uint8_t {
  parameters,
  gradients,
  optimizer_state,
  activations,
  temporaries,
  kept,  // made in a forward pass, and still there after two backward passes
  communication,
  caches,
  unknown,
};
inline constexpr std::size_t kCategoryCount = 9;
inline constexpr std::size_t kMostCategories = 64;  // with those of a user's rules

struct CategoryRule {
  enum class Means : std::uint8_t { category, setup, forward, backward, optimizer, reduction };

  Means means = Means::category;
  Category category = Category::unknown;  // where it means one
  bool is_anywhere = false;
  bool is_weak = false;  // of setup: memory that may be a parameter's, as far as its size says so
  std::vector<std::string> files;
  std::vector<std::string> functions;
  std::vector<std::string> tags;
  std::vector<std::string> stages;
  std::string regex;
};

struct CategoryRules {
  std::vector<std::string> names;  // by category; those of kCategoryCount first
  std::vector<CategoryRule> rules;
};

// Returns the rules that the command has by itself.
CategoryRules built_in_rules();
// Returns those of a file, followed by the built-in ones. Throws InvalidArgument, which names file, rule and value.
CategoryRules rules_with(InputFile file);

// Finds the rule that says what memory of a call stack, of a tag or of a stage is for. Remembers what it has found of frames,
// stacks and tags: each of the history is searched once. Not thread-safe.
class RuleMatcher {
 public:
  RuleMatcher(const History& history, const CategoryRules& rules);

  // Return the rule, or nullptr.
  const CategoryRule* for_stack(StackId stack);
  // Returns whether a call of the stack has a rule of this meaning, whatever decides for the stack.
  bool is_within(StackId stack, CategoryRule::Means means);
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

// A Categorizer finds the purpose of each allocation of a history: rules give it by call stacks, tags and stages; where
// they give a phase of the program, the allocation's lifetime decides.
//
//   forward    still there when a backward pass begins, or when memory runs out before: activation; after two backward passes,
//              or without one two more forward passes: kept; otherwise temporary
//   backward   still there when something else than a backward pass allocates: gradient; freed by the next pass: activation;
//              otherwise temporary
//   reduction  of gradients over the GPUs: still there when something else allocates: gradient; otherwise communication
//   optimizer  still there when something else than an optimizer allocates: optimizer state; otherwise temporary
//   setup      still there when a forward pass begins: parameter; otherwise temporary
//
// An allocation that lives at the end of the history, or when memory runs out in a forward pass, gets the first category. A call
// stack without frames, where others have some, is that of autograd's thread, which runs no Python. Memory that the program
// itself allocates between a forward pass and its backward pass, the loss, is of the forward pass.
//
// Not thread-safe: it remembers what the rules say of each call stack. The history and the rules must outlive it.
class Categorizer {
 public:
  Categorizer(const History& history, const CategoryRules& rules)
      : history_(history), rules_(rules), matcher_(history, rules) {}

  // Returns the category of each of the timeline's allocations.
  std::vector<Category> categories_of(const Timeline& timeline);

  std::string_view name_of(Category category) const { return rules_.names[static_cast<std::size_t>(category)]; }

 private:
  const History& history_;
  const CategoryRules& rules_;
  RuleMatcher matcher_;
};

}  // namespace cachalot::tools
