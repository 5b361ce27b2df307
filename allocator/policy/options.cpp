// The options: their keys with the rule of each, PyTorch's in PyTorch's words, and the texts that set them.
#include <algorithm>
#include <array>
#include <bit>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/locks.h"
#include "base/suggestions.h"
#include "cachalot/errors.h"
#include "cachalot/options.h"
#include "policy/option_grammar.h"
#include "policy/options_without_effect.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN
namespace {

// An OptionKey says how a setting changes the options.
struct OptionKey {
  std::string_view name;
  std::string_view alias;  // PyTorch's name for it in ROCm builds
  void (*set)(const OptionSetting&, Options&);
  bool takes_list = false;

  bool is_named(std::string_view word) const { return word == name || (!alias.empty() && word == alias); }
};

// ---- Values: PyTorch's rules in PyTorch's words ---------------------------------------------------------------------

std::size_t parse_count(const OptionSetting& setting, std::string_view text) {
  const std::optional<std::size_t> count = number_in<std::size_t>(text);
  if (!count) refuse(setting, formatted("'{}' is not a whole number from 0 to {}", text, Options::kUnlimited));
  return *count;
}

constexpr std::size_t kMaxMib = Options::kUnlimited / kMiB;

std::size_t parse_mib(const OptionSetting& setting) {
  const std::size_t mib = parse_count(setting, setting.value);
  if (mib > kMaxMib) refuse(setting, formatted("the number of MiB must be <= {}", kMaxMib));
  return mib * kMiB;
}

std::size_t parse_at_least_one_segment(const OptionSetting& setting, const Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes < options.large_segment_size) {
    refuse(setting, formatted("CachingAllocator option {} too small, must be >= {}", setting.key,
                              options.large_segment_size / kMiB));
  }
  return bytes;
}

double parse_real(const OptionSetting& setting) {
  const std::optional<double> real = number_in<double>(setting.value);
  if (!real) refuse(setting, "it is not a number");
  return *real;
}

bool parse_bool(const OptionSetting& setting) {
  if (setting.value == "True") return true;
  if (setting.value == "False") return false;
  refuse(setting, formatted("Expected 'True' or 'False' but got '{}'", setting.value));
}

template <typename Enumeration>
Enumeration parse_choice(const OptionSetting& setting,
                         std::initializer_list<std::pair<std::string_view, Enumeration>> choices, const char* rule) {
  for (const auto& [name, value] : choices) {
    if (setting.value == name) return value;
  }
  refuse(setting, rule);
}

std::size_t parse_divisions(const OptionSetting& setting, std::string_view text) {
  const std::size_t divisions = parse_count(setting, text);
  if (divisions != 0 && !std::has_single_bit(divisions)) {
    refuse(setting,
           formatted("For roundups, the divisions has to be power of 2 or 0 to disable roundup, got {}", text));
  }
  return divisions;
}

std::size_t parse_slot(const OptionSetting& setting, std::string_view text) {
  const std::size_t mib = parse_count(setting, text);
  if (!std::has_single_bit(mib)) {
    refuse(setting, formatted("For roundups, the intervals have to be power of 2, got {}", text));
  }
  return std::min(static_cast<std::size_t>(std::countr_zero(mib)), Options::kRoundupSlots - 1);
}

// ---- Rules -----------------------------------------------------------------------------------------------------------

void set_large_segment_size(const OptionSetting& setting, Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes <= kMinLargeAlloc) refuse(setting, "CachingAllocator option large_segment_size_mb must be > 10 MB");
  const bool is_default = options.max_non_split_rounding == options.large_segment_size;
  options.large_segment_size = bytes;
  if (is_default) options.max_non_split_rounding = bytes;
}

void set_max_split_size(const OptionSetting& setting, Options& options) {
  options.max_split_size = parse_at_least_one_segment(setting, options);
}

void set_max_non_split_rounding(const OptionSetting& setting, Options& options) {
  options.max_non_split_rounding = parse_at_least_one_segment(setting, options);
}

void set_garbage_collection_threshold(const OptionSetting& setting, Options& options) {
  const double threshold = parse_real(setting);
  if (!(threshold > 0 && threshold < 1)) {
    refuse(setting, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
  }
  options.garbage_collection_threshold = threshold;
}

// The first interval given also fills the slots below it, a later one only its own; '>' fills the slots after the last
// one given, from slot 1 on when there is none: PyTorch's rules, that oddity included.
void set_roundup_list(const OptionSetting& setting, Options& options) {
  auto& slots = options.roundup_power2_divisions;
  std::size_t last = 0;
  bool first = true;
  for (const OptionInterval& interval : setting.intervals) {
    const std::size_t divisions = parse_divisions(setting, interval.divisions);
    if (interval.boundary == ">") {
      std::fill(slots.begin() + static_cast<std::ptrdiff_t>(last + 1), slots.end(), divisions);
      continue;
    }
    last = parse_slot(setting, interval.boundary);
    if (first) std::fill_n(slots.begin(), last, divisions);
    slots[last] = divisions;
    first = false;
  }
}

void set_roundup_power2_divisions(const OptionSetting& setting, Options& options) {
  if (setting.is_list) return set_roundup_list(setting, options);
  const std::size_t divisions = parse_count(setting, setting.value);
  if (!std::has_single_bit(divisions)) refuse(setting, "For roundups, the divisions has to be power of 2");
  options.roundup_power2_divisions.fill(divisions);
}

void set_per_process_memory_fraction(const OptionSetting& setting, Options& options) {
  const double fraction = parse_real(setting);
  if (!(fraction >= 0 && fraction <= 1)) {
    refuse(setting, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
  }
  options.per_process_memory_fraction = fraction;
}

void set_limit(const OptionSetting& setting, Options& options) {
  try {
    options.limit = MemoryLimit::parse(setting.value);
  } catch (const InvalidArgument& error) {
    refuse(setting, error.what());
  }
}

template <auto member>
void set_bool(const OptionSetting& setting, Options& options) {
  options.*member = parse_bool(setting);
}

std::size_t parse_register_threads(const OptionSetting& setting) {
  constexpr std::size_t kMaxThreads = 128;  // CUDAAllocatorConfig::pinned_max_register_threads
  const std::size_t threads = parse_count(setting, setting.value);
  if (!std::has_single_bit(threads)) {
    refuse(setting, formatted("Number of register threads has to be power of 2, got {}", threads));
  }
  if (threads > kMaxThreads) {
    refuse(setting,
           formatted("Number of register threads should be less than or equal to {}, got {}", kMaxThreads, threads));
  }
  return threads;
}

std::size_t parse_reserve(const OptionSetting& setting) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes == 0) refuse(setting, "Pinned reserve segment size has to be greater than 0");
  return bytes;
}

std::size_t parse_accepted(AcceptedOption::Type type, const OptionSetting& setting) {
  switch (type) {
    case AcceptedOption::Type::flag:
      return parse_bool(setting) ? 1 : 0;
    case AcceptedOption::Type::threads:
      return parse_register_threads(setting);
    case AcceptedOption::Type::mib:
      break;
  }
  return parse_reserve(setting);
}

void set_without_effect(const OptionSetting& setting, Options& options) {
  const AcceptedOption& accepted = accepted_without_effect(setting.key);
  const std::size_t value = parse_accepted(accepted.type, setting);
  std::erase_if(options.without_effect, [&](const auto& kept) { return kept.first == accepted.name; });
  if (value != accepted.default_value()) options.without_effect.emplace_back(accepted.name, value);
  std::ranges::sort(options.without_effect);
}

void set_pinned_limit(const OptionSetting& setting, Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes == 1 << 20) refuse(setting, "it must be at least 2, or 0 for no limit");
  options.pinned_limit = bytes;
}

void set_backend(const OptionSetting& setting, Options&) {
  if (setting.value == "cudaMallocAsync") refuse(setting, "cachalot is a native backend; set native or nothing");
  if (setting.value != "native") refuse(setting, "Unknown allocator backend, options are native and cudaMallocAsync");
}

constexpr std::size_t kLargestPage = kMiB << 10;

void set_heap(const OptionSetting& setting, Options& options) {
  options.heap = parse_choice<HeapKind>(setting,
                                        {{"segments", HeapKind::segments},
                                         {"pages", HeapKind::pages},
                                         {"async", HeapKind::async},
                                         {"managed", HeapKind::managed}},
                                        "Unknown heap, options are segments, pages, async and managed");
}

void set_cross_stream(const OptionSetting& setting, Options& options) {
  options.cross_stream = parse_choice<CrossStream>(setting,
                                                   {{"off", CrossStream::off},
                                                    {"completed", CrossStream::completed},
                                                    {"scarce", CrossStream::scarce},
                                                    {"wait", CrossStream::wait}},
                                                   "options are off, completed, scarce and wait");
}

void set_oom_wait(const OptionSetting& setting, Options& options) {
  options.oom_wait = parse_choice<OomWait>(
      setting, {{"never", OomWait::never}, {"events", OomWait::events}, {"device", OomWait::device}},
      "options are never, events and device");
}

void set_remap_slack(const OptionSetting& setting, Options& options) {
  const double slack = parse_real(setting);
  if (!(slack >= 0 && slack <= 1)) refuse(setting, "it must be in [0.0, 1.0]");
  options.remap_slack = slack;
}

void set_page_size(const OptionSetting& setting, Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes % kSmallBuffer != 0 || bytes > kLargestPage)
    refuse(setting, formatted("it must be a multiple of 2 and at most {}; 0 means 32, or less where memory is scarce",
                              kLargestPage / kMiB));
  options.page_size = bytes;
}

// large_segment_size_mb is first: it bounds others.
constexpr OptionKey kEffectiveKeys[] = {
    {"large_segment_size_mb", "", set_large_segment_size},
    {"max_split_size_mb", "", set_max_split_size},
    {"max_non_split_rounding_mb", "", set_max_non_split_rounding},
    {"garbage_collection_threshold", "", set_garbage_collection_threshold},
    {"roundup_power2_divisions", "", set_roundup_power2_divisions, true},
    {"per_process_memory_fraction", "", set_per_process_memory_fraction},
    {"limit", "", set_limit},
    {"throw_on_cudamalloc_oom", "", set_bool<&Options::throw_on_cudamalloc_oom>},
    {"expandable_segments", "", set_bool<&Options::expandable_segments>},
    {"pinned_limit_mb", "", set_pinned_limit},
    {"backend", "", set_backend},
    {"heap", "", set_heap},
    {"cross_stream", "", set_cross_stream},
    {"oom_wait", "", set_oom_wait},
    {"immortal_streams", "", set_bool<&Options::immortal_streams>},
    {"remap_slack", "", set_remap_slack},
    {"calibrate", "", set_bool<&Options::calibrate>},
    {"page_size_mb", "", set_page_size},
    {"thread_cache", "", set_bool<&Options::thread_cache>},
    {"guard", "", set_bool<&Options::guard>},
    {"debug", "", set_bool<&Options::debug>},
};

constexpr auto kKeys = [] {
  std::array<OptionKey, std::size(kEffectiveKeys) + std::size(kAcceptedWithoutEffect)> keys{};
  auto* const rest = std::ranges::copy(kEffectiveKeys, keys.begin()).out;
  std::ranges::transform(kAcceptedWithoutEffect, rest, [](const AcceptedOption& accepted) {
    return OptionKey{accepted.name, accepted.alias, set_without_effect};
  });
  return keys;
}();

// Every member: the bindings do not compile when one is missing here.
auto members_of(const Options& options) {
  const auto& [large_segment_size, max_split_size, max_non_split_rounding, garbage_collection_threshold,
               roundup_power2_divisions, per_process_memory_fraction, limit, throw_on_cudamalloc_oom,
               expandable_segments, plain, pinned_limit, heap, cross_stream, oom_wait, immortal_streams, remap_slack,
               calibrate, page_size, thread_cache, guard, debug, without_effect, text] = options;
  return std::tie(large_segment_size, max_split_size, max_non_split_rounding, garbage_collection_threshold,
                  roundup_power2_divisions, per_process_memory_fraction, limit, throw_on_cudamalloc_oom,
                  expandable_segments, plain, pinned_limit, heap, cross_stream, oom_wait, immortal_streams, remap_slack,
                  calibrate, page_size, thread_cache, guard, debug, without_effect, text);
}

// Why the key is unknown, where that can be said.
std::string hint(std::string_view key) {
  constexpr std::array<std::string_view, 3> kGone = {"max_mappings", "guard_quarantine_mb", "background_thread"};
  if (std::ranges::find(kGone, key) != kGone.end()) return "the option is gone: leave it out";
  std::vector<std::string_view> known;
  known.reserve(std::size(kKeys));
  for (const OptionKey& option : kKeys) known.push_back(option.name);
  return did_you_mean(key, known);
}

void require_known(const OptionSetting& setting) {
  if (is_option(setting.key)) return;
  const std::string suggestion = hint(setting.key);
  throw InvalidArgument(formatted("Unrecognized key '{}' in CUDA allocator config (value '{}'){}{}", setting.key,
                                  shown(setting.value), suggestion.empty() ? "" : "; ", suggestion));
}

// The one setting of `key`, or null.
const OptionSetting* find_setting(const OptionKey& key, const std::vector<OptionSetting>& settings) {
  const auto is_it = [&](const OptionSetting& setting) { return key.is_named(setting.key); };
  const auto found = std::ranges::find_if(settings, is_it);
  if (found == settings.end()) return nullptr;
  const auto again = std::find_if(std::next(found), settings.end(), is_it);
  if (again != settings.end())
    refuse(*again, formatted("{} is given twice, first as '{}'", key.name, shown(found->value)));
  if (found->is_list && !key.takes_list) refuse(*found, "it takes one value, not a list");
  return &*found;
}

void reset_as_pytorch_does(Options& options) {
  options.max_split_size = Options::kUnlimited;
  options.roundup_power2_divisions.fill(0);
  options.garbage_collection_threshold = 0;
  options.max_non_split_rounding = options.large_segment_size;
}

// A new segment size also bounds what stays as it was.
void require_room_for_segments(const Options& options) {
  const auto require = [&](const char* key, std::size_t bytes) {
    CACHALOT_REQUIRE(bytes >= options.large_segment_size,
                     "option large_segment_size_mb: bad value '{}': {} is {} already, and must be >= it",
                     options.large_segment_size / kMiB, key, bytes / kMiB);
  };
  require("max_split_size_mb", options.max_split_size);
  require("max_non_split_rounding_mb", options.max_non_split_rounding);
}

}  // namespace

bool operator==(const Options& a, const Options& b) { return members_of(a) == members_of(b); }

bool is_option(std::string_view key) {
  return std::ranges::any_of(kKeys, [&](const OptionKey& known) { return known.is_named(key); });
}

std::vector<std::string> options_without_effect(const Options& options) {
  std::vector<std::string> sentences;
  for (const AcceptedOption& accepted : kAcceptedWithoutEffect) {
    if (accepted.why.empty() || accepted.value(options) == accepted.default_value()) continue;
    sentences.push_back(formatted("option {} has no effect: {}", accepted.name, accepted.why));
  }
  return sentences;
}

bool parse_debug(std::string_view value) {
  CACHALOT_REQUIRE(value.empty() || value == "0" || value == "1", "'{}' is not 1, for debug:True, nor 0", value);
  return value == "1";
}

Options parse_options(std::string_view text, const Options& base) {
  Options reset = base;
  reset_as_pytorch_does(reset);
  return amend_options(text, reset);
}

Options amend_options(std::string_view text, const Options& base) {
  const std::vector<OptionSetting> settings = read_settings(text);
  std::ranges::for_each(settings, require_known);

  Options options = base;
  for (const OptionKey& key : kKeys) {
    if (const OptionSetting* setting = find_setting(key, settings)) key.set(*setting, options);
  }
  // A text that names another heap than pages means it, whatever an earlier one says of expandable segments.
  const auto is_given = [&](std::string_view key) {
    return std::ranges::any_of(settings, [&](const OptionSetting& setting) { return setting.key == key; });
  };
  if (is_given("expandable_segments")) {
    options.plain = options.heap == HeapKind::pages && !options.expandable_segments;
  } else if (is_given("heap")) {
    options.plain = false;
    if (options.heap != HeapKind::pages) options.expandable_segments = false;
  }
  if (options.large_segment_size != base.large_segment_size) require_room_for_segments(options);
  options.text = std::string(text);
  return options;
}

namespace {

// At the commas outside of brackets.
std::vector<std::string> split_settings(const std::string& text) {
  std::vector<std::string> settings(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      settings.emplace_back();
    } else {
      settings.back() += c;
    }
  }
  return settings;
}

}  // namespace

PytorchConf parse_pytorch_conf(std::string_view text, const Options& base) {
  PytorchConf conf;
  std::string kept;
  for (const std::string& setting : split_settings(without_spaces(text))) {
    if (setting.empty()) continue;  // PyTorch allows a comma at the end
    const std::string key = setting.substr(0, setting.find(':'));
    if (!is_option(key)) {
      conf.warnings.push_back(
          formatted("'{}' is ignored: this version does not know '{}'", shown(setting), shown(key)));
    } else {
      kept += (kept.empty() ? "" : ",") + setting;
    }
  }
  conf.options = parse_options(kept, base);
  conf.options.text = std::string(text);
  return conf;
}

namespace {

struct Printed {
  SleepingMutex mutex;
  std::set<std::string> sentences CACHALOT_GUARDED_BY(mutex);
};

}  // namespace

void warn_of_options_without_effect(const Options& options, const Options& before) {
  static auto& printed = *new Printed;
  const std::vector<std::string> known = options_without_effect(before);
  for (const std::string& sentence : options_without_effect(options)) {
    if (std::ranges::find(known, sentence) != known.end()) continue;
    const Lock lock(printed.mutex);
    if (printed.sentences.insert(sentence).second) print_error("cachalot: {}\n", sentence);
  }
}

CACHALOT_END
