#include "tools/analysis/category_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

using RulesJson = nlohmann::json;
using Means = CategoryRule::Means;

constexpr std::string_view kBuiltIn =
#include "tools/analysis/category_rules.inc"
    ;

constexpr std::array<std::string_view, kCategoryCount> kNames = {"parameters",    "gradients",   "optimizer state",
                                                                 "activations",   "temporaries", "kept",
                                                                 "communication", "caches",      "unknown"};
constexpr std::array kPhases = {std::pair{"setup", Means::setup}, std::pair{"forward", Means::forward},
                                std::pair{"backward", Means::backward}, std::pair{"optimizer", Means::optimizer}};

constexpr std::size_t kLargestFile = std::size_t{1} << 20;
constexpr std::size_t kMostRules = 1000;
constexpr std::size_t kLongestPattern = 200;

class RulesReader {
 public:
  RulesReader(CategoryRules& rules, std::string path) : rules_(rules), path_(std::move(path)) {}

  void read(std::string_view text) {
    const RulesJson document = RulesJson::parse(text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
    CACHALOT_REQUIRE(!document.is_discarded(), "{}: rules must be JSON", path_);
    CACHALOT_REQUIRE(document.is_object() && document.contains("rules") && document["rules"].is_array(),
                     "{}: rules must be an object with a list `rules`", path_);
    CACHALOT_REQUIRE(document["rules"].size() <= kMostRules, "{}: more than {} rules", path_, kMostRules);
    for (const RulesJson& rule : document["rules"]) add(rule);
  }

 private:
  void add(const RulesJson& json) {
    ++number_;
    CACHALOT_REQUIRE(json.is_object(), "{}: rule {} is not an object", path_, number_);
    CategoryRule rule;
    bool says_what = false;
    for (const auto& [key, value] : json.items()) {
      if (key == "means" || key == "category") {
        set_meaning(rule, text(value, key));
        says_what = true;
      } else if (key == "anywhere") {
        CACHALOT_REQUIRE(value.is_boolean(), "{}: rule {}: anywhere must be true or false", path_, number_);
        rule.is_anywhere = value.get<bool>();
      } else if (key == "regex") {
        set_regex(rule, text(value, key));
      } else {
        patterns_of(rule, key) = texts(value, key);
      }
    }
    CACHALOT_REQUIRE(says_what, "{}: rule {} has no category", path_, number_);
    CACHALOT_REQUIRE(!rule.regex.empty() || !rule.files.empty() || !rule.functions.empty() || !rule.tags.empty() ||
                         !rule.stages.empty(),
                     "{}: rule {} has none of regex, files, functions, tags and stages", path_, number_);
    rules_.rules.push_back(std::move(rule));
  }

  void set_meaning(CategoryRule& rule, const std::string& name) {
    for (const auto& [phase, means] : kPhases) {
      if (name == phase) rule.means = means;
    }
    if (rule.means != Means::category) return;
    const auto known = std::ranges::find_if(
        rules_.names, [&](const std::string& one) { return one == name || key_of_category(one) == name; });
    rule.category = static_cast<Category>(known - rules_.names.begin());
    if (known != rules_.names.end()) return;
    CACHALOT_REQUIRE(rules_.names.size() < kMostCategories, "{}: more than {} categories", path_, kMostCategories);
    rules_.names.push_back(name);
  }

  void set_regex(CategoryRule& rule, const std::string& pattern) {
    CACHALOT_REQUIRE(pattern.find('{') == std::string::npos,
                     "{}: rule {}: regex {} repeats by counts; write the repeated part out, or use * or +", path_,
                     number_, fmt::format("{}", Quoted{pattern}));
    rule.regex = pattern;
  }

  std::vector<std::string>& patterns_of(CategoryRule& rule, const std::string& key) {
    if (key == "files") return rule.files;
    if (key == "functions") return rule.functions;
    if (key == "tags") return rule.tags;
    CACHALOT_REQUIRE(key == "stages",
                     "{}: rule {}: {} is none of category, means, anywhere, regex, files, functions, tags and stages",
                     path_, number_, fmt::format("{}", Quoted{key}));
    return rule.stages;
  }

  std::vector<std::string> texts(const RulesJson& list, const std::string& key) {
    CACHALOT_REQUIRE(list.is_array() && !list.empty(), "{}: rule {}: {} must be a list of texts", path_, number_, key);
    std::vector<std::string> texts;
    for (const RulesJson& one : list) texts.push_back(text(one, key));
    return texts;
  }

  std::string text(const RulesJson& value, const std::string& key) {
    CACHALOT_REQUIRE(value.is_string(), "{}: rule {}: {} must be text", path_, number_, key);
    std::string text = value.get<std::string>();
    CACHALOT_REQUIRE(!text.empty() && text.size() <= kLongestPattern, "{}: rule {}: {} must have 1 to {} characters",
                     path_, number_, key, kLongestPattern);
    return text;
  }

  CategoryRules& rules_;
  std::string path_;
  std::size_t number_ = 0;
};

void add_built_in(CategoryRules& rules) { RulesReader(rules, "built-in rules").read(kBuiltIn); }

CategoryRules without_rules() { return {.names = {kNames.begin(), kNames.end()}, .rules = {}}; }

}  // namespace

CategoryRules built_in_rules() {
  CategoryRules rules = without_rules();
  add_built_in(rules);
  return rules;
}

CategoryRules rules_with(InputFile file) {
  CategoryRules rules = without_rules();
  std::string text(kLargestFile + 1, '\0');
  text.resize(file.read(text.data(), text.size()));
  CACHALOT_REQUIRE(text.size() <= kLargestFile, "{}: rules have more than {} bytes", file.path(), kLargestFile);
  CACHALOT_REQUIRE(file.trouble().empty(), "{}: {}", file.path(), file.trouble());
  RulesReader(rules, file.path()).read(text);
  add_built_in(rules);
  return rules;
}

std::string key_of_category(std::string_view name) {
  std::string key(name);
  std::ranges::replace(key, ' ', '_');
  return key;
}

}  // namespace cachalot::tools
