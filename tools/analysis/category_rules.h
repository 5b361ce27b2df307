// Rules that say by a call stack, a tag or a stage what memory is for.
//
// They are JSON: {"rules": [{"means": ..., "files": [...], "functions": [...], "tags": [...], "stages": [...]}, ...]}. `files`,
// `functions`, `tags` and `stages` are globs, with `*` alone. A rule with `files` and `functions` asks for one frame that has
// both. `means` is a category, or a phase of the program, where lifetimes decide: what a forward pass makes is an activation if
// it is still there when the backward pass begins. A frame of a newer call decides before an older one; of the rules for one
// frame the first. A rule with "anywhere": true comes before all those, whichever frame it describes.
//
// A user's rules may have {"category": "any name", "regex": "..."} as well. The expression is searched in "file:function" of each
// frame, and in tags. libstdc++'s breadth-first matcher runs it, so that its time is that of text times pattern; it knows no
// back references. Repetitions with counts are refused, because they multiply the pattern.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/input_file.h"

namespace cachalot::tools {

// What memory is for: the kinds of docs/tools/simulate.md. Larger values are the categories of a user's rules.
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
  enum class Means : std::uint8_t { category, setup, forward, backward, optimizer };

  Means means = Means::category;
  Category category = Category::unknown;  // where it means one
  bool is_anywhere = false;
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

// Returns the key in JSON: "optimizer_state" of "optimizer state".
std::string key_of_category(std::string_view name);

}  // namespace cachalot::tools
