#include "tools/analysis/categories.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "tools/analysis/phases.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {

bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // the last one that was passed
  std::size_t behind_star = 0;                // where the text goes on that this star does not stand for
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      behind_star = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++behind_star;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

namespace {

using RulesJson = nlohmann::json;
using Means = CategoryRule::Means;

constexpr std::string_view kBuiltIn =
#include <tools/category_rules.inc>  // made of tools/analysis/category_rules.json
    ;

constexpr std::array<std::string_view, kCategoryCount> kNames = {"parameters",    "gradients",   "optimizer state",
                                                                 "activations",   "temporaries", "kept",
                                                                 "communication", "caches",      "unknown"};
constexpr std::array kPhases = {std::pair{"setup", Means::setup}, std::pair{"forward", Means::forward},
                                std::pair{"backward", Means::backward}, std::pair{"optimizer", Means::optimizer},
                                std::pair{"reduction", Means::reduction}};

constexpr std::size_t kLargestFile = std::size_t{1} << 20;
constexpr std::size_t kMostRules = 1000;
constexpr std::size_t kLongestPattern = 200;

// Returns the key in JSON: "optimizer_state" of "optimizer state".
std::string key_of_category(std::string_view name) {
  std::string key(name);
  std::ranges::replace(key, ' ', '_');
  return key;
}

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
      } else if (key == "anywhere" || key == "weak") {
        CACHALOT_REQUIRE(value.is_boolean(), "{}: rule {}: {} must be true or false", path_, number_, key);
        (key == "weak" ? rule.is_weak : rule.is_anywhere) = value.get<bool>();
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
    CACHALOT_REQUIRE(
        key == "stages",
        "{}: rule {}: {} is none of category, means, anywhere, weak, regex, files, functions, tags and stages", path_,
        number_, fmt::format("{}", Quoted{key}));
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

CategoryRules without_rules() { return {.names = {kNames.begin(), kNames.end()}, .rules = {}}; }
void add_built_in(CategoryRules& rules) { RulesReader(rules, "built-in rules").read(kBuiltIn); }

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

bool RuleMatcher::is_within(StackId stack, Means means) {
  return std::ranges::any_of(history_.stacks[stack], [&](FrameId frame) {
    const int found = of_frame(frame).otherwise;
    return found != kNone && rule(found)->means == means;
  });
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
    const bool is_nested =
        first != kNone && rule(first)->means == Means::backward;  // a backward pass in a checkpoint's
    if (first == kNone) first = found.otherwise;
    if (found.anywhere == kNone || (is_nested && rule(found.anywhere)->regex.empty())) continue;
    if (anywhere == kNone || found.anywhere < anywhere) anywhere = found.anywhere;
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

namespace {

// Finds the category of memory that was allocated before the recording began, and has no call stack, by its size.

constexpr double kNearlyAll = 0.9;  // of the gradients' bytes

using CountBySize = std::map<std::uint64_t, std::size_t>;
using NumbersBySize = std::map<std::uint64_t, std::vector<std::size_t>>;  // of allocations

// The moment when gradients hold most for the first time, and how many of each size there are then.
struct Gradients {
  std::uint32_t event = 0;
  std::uint32_t first = 0;  // when the first of all was made
  CountBySize counts;
};

Gradients gradients_of(std::span<const Allocation> allocations, std::span<const Category> categories) {
  std::vector<std::pair<std::uint32_t, std::int64_t>> changes;  // of bytes
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    if (categories[i] != Category::gradients) continue;
    const auto bytes = static_cast<std::int64_t>(allocations[i].bytes);
    changes.emplace_back(allocations[i].begin, bytes);
    if (allocations[i].end != Allocation::kNever) changes.emplace_back(allocations[i].end, -bytes);
  }
  std::ranges::sort(changes);  // in one event, what ends comes first
  Gradients gradients;
  if (!changes.empty()) gradients.first = changes.front().first;
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const auto& [event, change] : changes) {
    now += change;
    if (now > most) gradients.event = event;
    most = std::max(most, now);
  }
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& one = allocations[i];
    const bool lives = one.begin <= gradients.event && one.end > gradients.event;
    if (categories[i] == Category::gradients && lives) ++gradients.counts[one.bytes];
  }
  return gradients;
}

// Gives the category to as many of the allocations as there are gradients of their size, `at_most` times, where nearly all
// gradients find one; the allocations are then no longer in `unnamed`.
void match(const CountBySize& gradients, NumbersBySize& unnamed, std::size_t at_most, Category category,
           std::vector<Category>& categories) {
  double wanted = 0;
  double found = 0;
  for (const auto& [bytes, count] : gradients) {
    wanted += static_cast<double>(bytes) * static_cast<double>(count);
    found += static_cast<double>(bytes) * static_cast<double>(std::min(count, unnamed[bytes].size()));
  }
  if (wanted == 0 || found < kNearlyAll * wanted) return;
  for (const auto& [bytes, count] : gradients) {
    std::vector<std::size_t>& numbers = unnamed[bytes];  // the lowest address last
    for (std::size_t i = 0; i < count * at_most && !numbers.empty(); ++i) {
      categories[numbers.back()] = category;
      numbers.pop_back();
    }
  }
}

// Finds the parameters among the unknown allocations from before the first backward pass, and the optimizer's state among those
// from before the recording, and changes their categories. A gradient is as large as its parameter, and an optimizer keeps as much once more (a momentum) or twice (Adam): where, when the
// gradients of a step are complete, nearly all of them find an allocation of their size, these are the parameters; where nearly
// all find another one, the others are the state. Of allocations of one size, those that are never freed are taken first, by
// address: which of them are the parameters is not known, but how much all of them are is.
void name_what_was_before(std::span<const Allocation> allocations, std::vector<Category>& categories) {
  if (std::ranges::find(categories, Category::parameters) != categories.end()) return;
  const Gradients gradients = gradients_of(allocations, categories);
  if (gradients.counts.empty()) return;
  const auto was_before = [&](std::size_t i) { return allocations[i].begin == Allocation::kBefore; };
  NumbersBySize unnamed;
  for (std::size_t i = allocations.size(); i-- > 0;) {
    const Allocation& one = allocations[i];
    const bool lives = (was_before(i) || one.begin < gradients.first) && one.end > gradients.event;
    if (lives && categories[i] == Category::unknown) unnamed[one.bytes].push_back(i);
  }
  for (auto& [bytes, numbers] : unnamed) {  // an optimizer may make its state anew in each step, but not the parameters
    std::stable_partition(numbers.begin(), numbers.end(),
                          [&](std::size_t i) { return allocations[i].end != Allocation::kNever; });
  }
  match(gradients.counts, unnamed, 1, Category::parameters, categories);
  for (auto& [bytes, numbers] : unnamed) std::erase_if(numbers, std::not_fn(was_before));
  match(gradients.counts, unnamed, 2, Category::optimizer_state, categories);
}

using Means = CategoryRule::Means;

// A rule that calls an allocation a parameter's may be wrong: the reason.
enum class Doubt : std::uint8_t { none, loaded, made };

// Decides what a doubtful parameter is, by sizes: as many of a size are parameters as there are gradients, less those without a
// doubt; of a checkpoint, the next ones are the optimizer's state, if the optimizer has made none; the rest is not known. Without
// gradients a checkpoint is a model's.
void settle_doubts(std::span<const Allocation> allocations, std::span<const Doubt> doubts,
                   std::vector<Category>& categories) {
  const Gradients gradients = gradients_of(allocations, categories);
  CountBySize wanted = gradients.counts;
  const bool has_state = std::ranges::find(categories, Category::optimizer_state) != categories.end();
  const auto is_doubtful = [&](std::size_t i) {
    return doubts[i] != Doubt::none && categories[i] == Category::parameters;
  };
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const auto found = wanted.find(allocations[i].bytes);
    if (categories[i] == Category::parameters && !is_doubtful(i) && found != wanted.end() && found->second > 0)
      --found->second;
  }
  CountBySize state;
  if (!has_state) {
    for (const auto& [bytes, count] : gradients.counts) state[bytes] = 2 * count;  // as Adam has
  }
  const auto take = [](CountBySize& counts, std::uint64_t bytes) {
    const auto found = counts.find(bytes);
    return found != counts.end() && found->second > 0 && found->second-- > 0;
  };
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    if (!is_doubtful(i) || take(wanted, allocations[i].bytes)) continue;
    const bool is_loaded = doubts[i] == Doubt::loaded;
    if (is_loaded && !gradients.counts.contains(allocations[i].bytes)) continue;
    categories[i] = is_loaded && take(state, allocations[i].bytes) ? Category::optimizer_state : Category::unknown;
  }
}

// The workspace that PyTorch gives cuBLAS on most GPUs, CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8, once for each thread:
// autograd's has its own.
constexpr std::uint64_t kBlasWorkspace = std::uint64_t{2 * 4096 + 8 * 16} << 10;

// Says what becomes of an allocation that a phase made, by its lifetime.
class Lifetimes {
 public:
  explicit Lifetimes(const Phases& phases) : phases_(phases) {}

  Category of(const Allocation& one, Means phase) const {
    switch (phase) {
      case Means::backward:
        if (!outlives_run(one)) return Category::temporaries;
        if (one.bytes == kBlasWorkspace && !ends(one)) return Category::kept;
        return is_for_another_pass(one) && !is_freed_by_failure(one) ? Category::activations : Category::gradients;
      case Means::reduction:
        return outlives_run(one) ? Category::gradients : Category::communication;
      case Means::optimizer:
        return outlives_run(one) ? Category::optimizer_state : Category::temporaries;
      case Means::setup:
        return lives_at(one, phases_.next(Means::forward, one.begin)) ? Category::parameters : Category::temporaries;
      case Means::forward:
        if (is_cut_short(one)) return Category::activations;
        if (is_kept(one, is_for_backward(one) ? Means::backward : Means::forward)) return Category::kept;
        return lives_at(one, phases_.next(Means::backward, one.begin)) ? Category::activations : Category::temporaries;
      case Means::category:
        if (phases_.is_between_passes(one.begin)) return of(one, Means::forward);
    }
    // Memory that a backward pass frees was saved for it. A batch lives on until the program takes the next one.
    const bool is_saved = reaches(one, phases_.next(Means::backward, one.begin)) && ends(one) &&
                          phases_.at(one.end) == Means::backward && !is_kept(one, Means::backward);
    return is_saved ? Category::activations : Category::unknown;
  }

  // Returns whether the history ends before it is known what becomes of the allocation.
  bool is_open(const Allocation& one, Means phase) const {
    if (phase == Means::forward && is_cut_short(one)) return true;
    if (phase != Means::forward && is_freed_by_failure(one)) return true;
    if (ends(one) || phase == Means::category) return false;
    if (phase == Means::forward) return !is_for_backward(one) && !is_kept(one, Means::forward);
    if (phase == Means::setup) return phases_.next(Means::forward, one.begin) == kNoEvent;
    return phases_.end_of_run_at(one.begin) == kNoEvent;
  }

 private:
  static bool ends(const Allocation& one) { return one.end != Allocation::kNever; }
  static bool reaches(const Allocation& one, std::uint32_t event) { return event != kNoEvent && one.end > event; }
  static bool lives_at(const Allocation& one, std::uint32_t event) { return !ends(one) || reaches(one, event); }

  // An error that memory ran out ends the forward pass and frees what the backward pass would have used.
  bool is_cut_short(const Allocation& one) const {
    const std::uint32_t failure = phases_.next_failure(one.begin);
    return reaches(one, failure) && failure < phases_.next(Means::backward, one.begin);
  }
  // The error frees what a backward pass or a step was just making: it might have outlived that.
  bool is_freed_by_failure(const Allocation& one) const {
    const std::uint32_t failure = phases_.next_failure(one.begin);
    return ends(one) && reaches(one, failure) && failure < phases_.end_of_run_at(one.begin);
  }
  bool outlives_run(const Allocation& one) const {
    return lives_at(one, phases_.end_of_run_at(one.begin)) || is_freed_by_failure(one);
  }

  // With create_graph=True a backward pass saves what the next one, right behind it, needs.
  bool is_for_another_pass(const Allocation& one) const {
    return ends(one) && phases_.at(one.end) == Means::backward && one.end < phases_.next(Means::forward, one.begin) &&
           one.end < phases_.next(Means::optimizer, one.begin);
  }

  bool is_for_backward(const Allocation& one) const { return phases_.next(Means::backward, one.begin) != kNoEvent; }
  // Returns whether it is still there after two more of these passes.
  bool is_kept(const Allocation& one, Means pass) const {
    std::uint32_t event = one.begin;
    for (int passes = 0; passes < 2; ++passes) {
      event = phases_.next(pass, event);
      if (event == kNoEvent) return false;
    }
    return reaches(one, phases_.end_of_run_at(event));
  }

  const Phases& phases_;
};

// Returns whether call stacks have PyTorch's functions in C++, so that an allocation of a backward pass has those of autograd's engine.
bool has_native_frames(const History& history) {
  for (FrameId frame = 0; frame < history.stacks.frame_count(); ++frame) {
    const std::string_view function = history.texts[history.stacks.frame(frame).function];
    if (function.starts_with("at::") || function.starts_with("torch::autograd::")) return true;
  }
  return false;
}

// Returns whether the requests without a call stack are those of autograd's thread: others have one, a tenth at least.
bool has_bare_backward(const DeviceHistory& device) {
  std::size_t requests = 0;
  std::size_t with_stack = 0;
  for (const HistoryEvent& event : device.events) {
    if (event.action != HistoryEvent::Action::alloc) continue;
    ++requests;
    if (event.stack != 0) ++with_stack;
  }
  return with_stack * 10 > requests;
}

// A Judgement decides the categories of one history's allocations: by the rules or the phase, then by lifetimes.
class Judgement {
 public:
  Judgement(const History& history, const DeviceHistory& device, RuleMatcher& matcher)
      : phases_(has_native_frames(history)),
        stages_(history, device),
        rules_of_stages_(stages_.size()),
        matcher_(matcher),
        is_bare_backward_(has_bare_backward(device)) {
    for (std::size_t i = 0; i < device.events.size(); ++i) {
      const HistoryEvent& event = device.events[i];
      if (event.action == HistoryEvent::Action::oom) phases_.add_failure(static_cast<std::uint32_t>(i));
      if (event.action != HistoryEvent::Action::alloc) continue;
      const Verdict verdict = verdict_on(event.stack, event.details, stages_.at(i));
      if (verdict.category != Category::unknown || (verdict.phase == Means::category && event.stack == 0)) continue;
      // A module that is made in a forward pass does not end it.
      if (verdict.phase == Means::setup && matcher_.is_within(event.stack, Means::forward)) continue;
      phases_.add(static_cast<std::uint32_t>(i), verdict.phase == Means::reduction ? Means::backward : verdict.phase);
    }
  }

  // Appends to `doubts` one for each allocation.
  std::vector<Category> of(std::span<const Allocation> allocations, std::size_t stacks, std::vector<Doubt>& doubts) {
    std::vector<Category> categories = by_rules_and_lifetimes(allocations, stacks, doubts);
    find_gradients_of_bare_steps(allocations, categories);
    let_go_of_what_comes_again(allocations, categories);
    return categories;
  }

 private:
  struct Verdict {
    Category category = Category::unknown;
    Means phase = Means::category;
    Doubt doubt = Doubt::none;
  };

  std::vector<Category> by_rules_and_lifetimes(std::span<const Allocation> allocations, std::size_t stacks,
                                               std::vector<Doubt>& doubts) {
    const Lifetimes lifetimes(phases_);
    std::vector<Category> categories;
    std::vector<std::array<std::uint32_t, 2>> votes(stacks);  // of what ended: temporaries, and all others
    std::vector<std::size_t> open;
    categories.reserve(allocations.size());
    for (const Allocation& one : allocations) {
      const Verdict verdict = verdict_on(one);
      categories.push_back(verdict.category);
      doubts.push_back(verdict.doubt);
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

  // Two backward passes of an iteration may use memory of a line that allocates and frees it again, as a GAN's images. Memory that
  // is kept adds up.
  void let_go_of_what_comes_again(std::span<const Allocation> allocations, std::vector<Category>& categories) {
    std::map<StackId, std::vector<std::size_t>> by_stack;
    for (std::size_t i = 0; i < allocations.size(); ++i) {
      const bool is_made = allocations[i].begin != Allocation::kBefore && allocations[i].stack != 0;
      if (categories[i] == Category::kept && is_made) by_stack[allocations[i].stack].push_back(i);
    }
    constexpr std::size_t kTimes = 2;  // as many come as are there at once
    for (const auto& [stack, numbers] : by_stack) {
      if (kTimes * most_at_once(allocations, numbers) > numbers.size()) continue;
      for (const std::size_t i : numbers) categories[i] = Category::activations;
    }
  }

  static std::size_t most_at_once(std::span<const Allocation> allocations, std::span<const std::size_t> numbers) {
    std::vector<std::pair<std::uint32_t, int>> changes;
    for (const std::size_t i : numbers) {
      changes.emplace_back(allocations[i].begin, 1);
      if (allocations[i].end != Allocation::kNever) changes.emplace_back(allocations[i].end, -1);
    }
    std::ranges::sort(changes);
    int now = 0;
    int most = 0;
    for (const auto& [event, change] : changes) most = std::max(most, now += change);
    return static_cast<std::size_t>(most);
  }

  // SGD allocates nothing in its step: gradients are then freed before anything else is allocated. They are what has the size of a
  // parameter and outlives the last allocation of a backward pass that has no others.
  void find_gradients_of_bare_steps(std::span<const Allocation> allocations, std::vector<Category>& categories) {
    std::set<std::uint64_t> sizes;
    std::set<std::uint32_t> passes;  // with gradients, by their last events
    for (std::size_t i = 0; i < allocations.size(); ++i) {
      if (categories[i] == Category::parameters) sizes.insert(allocations[i].bytes);
      if (categories[i] == Category::gradients) passes.insert(phases_.last_of_run_at(allocations[i].begin));
    }
    for (std::size_t i = 0; i < allocations.size(); ++i) {
      const Allocation& one = allocations[i];
      const bool may_be = categories[i] == Category::temporaries && one.begin != Allocation::kBefore;
      if (!may_be || !sizes.contains(one.bytes) || verdict_on(one).phase != Means::backward) continue;
      const std::uint32_t last = phases_.last_of_run_at(one.begin);
      if (one.end > last && !passes.contains(last)) categories[i] = Category::gradients;
    }
  }

  Verdict verdict_on(const Allocation& one) {
    const bool is_before = one.begin == Allocation::kBefore;
    if (is_before && one.stack == 0 && one.details == 0) return {};
    Verdict verdict = verdict_on(one.stack, one.details, is_before ? 0 : stages_.at(one.begin));
    if (is_before && verdict.phase == Means::setup) verdict.category = Category::parameters;
    if (is_before && verdict.phase == Means::optimizer) verdict = {.category = Category::optimizer_state};
    return verdict;
  }

  Verdict verdict_on(StackId stack, DetailsId details, StageId stage) {
    const CategoryRule* rule = matcher_.for_details(details);
    if (rule == nullptr) rule = matcher_.for_stack(stack);
    if (rule == nullptr && stack == 0 && is_bare_backward_) return {.phase = Means::backward};
    if (rule == nullptr) rule = rule_of(stage);
    if (rule == nullptr) return {};
    Verdict verdict{.category = rule->means == Means::category ? rule->category : Category::unknown,
                    .phase = rule->means};
    if (rule->is_weak) verdict.doubt = rule->files.empty() ? Doubt::made : Doubt::loaded;
    return verdict;
  }

  const CategoryRule* rule_of(StageId stage) {
    std::optional<const CategoryRule*>& known = rules_of_stages_[stage];
    if (!known) known = matcher_.for_stage(stages_, stage);
    return *known;
  }

  Phases phases_;
  Stages stages_;
  std::vector<std::optional<const CategoryRule*>> rules_of_stages_;  // nullopt: not asked for yet
  RuleMatcher& matcher_;
  bool is_bare_backward_;
};

}  // namespace

std::vector<Category> Categorizer::categories_of(const Timeline& timeline) {
  const std::vector<Allocation>& allocations = timeline.allocations();
  std::vector<Doubt> doubts;
  std::vector<Category> categories =
      Judgement(history_, timeline.device(), matcher_).of(allocations, history_.stacks.size(), doubts);
  settle_doubts(allocations, doubts, categories);
  name_what_was_before(allocations, categories);
  return categories;
}

}  // namespace cachalot::tools
