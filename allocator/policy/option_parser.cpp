
#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "base/suggestions.h"
#include "cachalot/options.h"
#include "policy/shown_text.h"
#include "policy/torch_policy.h"

namespace cachalot {
namespace {

// One entry of roundup_power2_divisions' list form, as text.
struct Interval {
  std::string boundary;
  std::string divisions;
};

// One `key:value` of the text: a single token or a list.
struct Setting {
  std::string key;
  std::string value;  // of a list: its text, for messages
  bool is_list = false;
  std::vector<Interval> intervals;
};

[[noreturn]] void refuse(const Setting& setting, const std::string& rule) {
  throw InvalidArgument(formatted("option {}: bad value '{}': {}", setting.key, shown(setting.value), rule));
}

// Every member: the bindings do not compile when one is missing here.
auto members_of(const Options& options) {
  const auto& [large_segment_size, max_split_size, max_non_split_rounding, garbage_collection_threshold,
               roundup_power2_divisions, per_process_memory_fraction, expandable_segments, release_lock_on_cudamalloc,
               graph_capture_record_stream_reuse, pinned_use_background_threads, pinned_use_cuda_host_register,
               pinned_num_register_threads, pinned_reserve_segment_size, heap, cross_stream, immortal_streams,
               remap_slack, page_size, max_mappings, thread_cache, guard, guard_quarantine, debug, text] = options;
  return std::tie(large_segment_size, max_split_size, max_non_split_rounding, garbage_collection_threshold,
                  roundup_power2_divisions, per_process_memory_fraction, expandable_segments,
                  release_lock_on_cudamalloc, graph_capture_record_stream_reuse, pinned_use_background_threads,
                  pinned_use_cuda_host_register, pinned_num_register_threads, pinned_reserve_segment_size, heap,
                  cross_stream, immortal_streams, remap_slack, page_size, max_mappings, thread_cache, guard,
                  guard_quarantine, debug, text);
}

// ---- Grammar --------------------------------------------------------------------------------------------------------

bool is_separator(char c) { return c == ',' || c == ':' || c == '[' || c == ']'; }

// No key and no value is near as long; messages repeat them.
constexpr std::size_t kLongestToken = 256;

// PyTorch's tokens: separators stand alone, whitespace vanishes.
std::vector<std::string> tokenize(std::string_view text) {
  std::vector<std::string> tokens;
  bool glue = false;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (is_separator(c) || !glue) tokens.emplace_back();
    tokens.back() += c;
    glue = !is_separator(c);
    CACHALOT_REQUIRE(tokens.back().size() <= kLongestToken,
                     "allocator options: '{:.60}...' has more than {} characters, as no key or value has",
                     tokens.back(), kLongestToken);
  }
  return tokens;
}

// Reads settings from tokens. PyTorch does not check its separators; we do.
class Grammar {
 public:
  explicit Grammar(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  std::vector<Setting> read() {
    std::vector<Setting> settings;
    if (at_end()) return settings;
    CACHALOT_REQUIRE(at_word(), "allocator options: found {} at the start, where a key is expected", found());
    do {
      settings.push_back(read_setting());
    } while (take_comma(settings.back()));
    return settings;
  }

 private:
  bool at_end() const { return next_ == tokens_.size(); }
  bool at(char separator) const { return !at_end() && tokens_[next_].front() == separator; }
  bool at_word() const { return !at_end() && !is_separator(tokens_[next_].front()); }
  std::string found() const { return at_end() ? "the end" : formatted("'{}'", tokens_[next_]); }

  Setting read_setting() {
    Setting setting;
    setting.key = tokens_[next_++];
    CACHALOT_REQUIRE(at(':'), "option {}: found {} after the key: ':' and a value are expected there", setting.key,
                     found());
    ++next_;
    if (at('[')) {
      read_list(setting);
    } else {
      setting.value = read_word(setting);
    }
    return setting;
  }

  void read_list(Setting& setting) {
    setting.is_list = true;
    do {
      setting.value += tokens_[next_++];  // '[' or ','
      Interval interval;
      interval.boundary = read_word(setting);
      setting.value += interval.boundary;
      expect(':', setting);
      interval.divisions = read_word(setting);
      setting.value += interval.divisions;
      setting.intervals.push_back(std::move(interval));
    } while (at(','));
    expect(']', setting);
  }

  std::string read_word(const Setting& setting) {
    if (!at_word()) refuse(setting, formatted("found {} where a value is expected", found()));
    return tokens_[next_++];
  }

  void expect(char separator, Setting& setting) {
    if (!at(separator)) refuse(setting, formatted("found {} where '{}' is expected", found(), separator));
    setting.value += tokens_[next_++];
  }

  // Between two settings; false at the end.
  bool take_comma(const Setting& before) {
    if (at_end()) return false;
    if (!at(',')) refuse(before, formatted("found {} after it, where ',' or the end is expected", found()));
    ++next_;
    if (!at_word()) refuse(before, formatted("found {} after its ',', where a key is expected", found()));
    return true;
  }

  std::vector<std::string> tokens_;
  std::size_t next_ = 0;
};

// ---- Values: PyTorch's rules in PyTorch's words ---------------------------------------------------------------------

// The number that all of `text` is, or nothing.
template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::size_t parse_count(const Setting& setting, std::string_view text) {
  const std::optional<std::size_t> count = number_in<std::size_t>(text);
  if (!count) refuse(setting, formatted("'{}' is not a whole number from 0 to {}", text, Options::kUnlimited));
  return *count;
}

constexpr std::size_t kMaxMib = Options::kUnlimited / kMiB;

std::size_t parse_mib(const Setting& setting) {
  const std::size_t mib = parse_count(setting, setting.value);
  if (mib > kMaxMib) refuse(setting, formatted("the number of MiB must be <= {}", kMaxMib));
  return mib * kMiB;
}

std::size_t parse_at_least_one_segment(const Setting& setting, const Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes < options.large_segment_size) {
    refuse(setting, formatted("CachingAllocator option {} too small, must be >= {}", setting.key,
                              options.large_segment_size / kMiB));
  }
  return bytes;
}

double parse_real(const Setting& setting) {
  const std::optional<double> real = number_in<double>(setting.value);
  if (!real) refuse(setting, "it is not a number");
  return *real;
}

bool parse_bool(const Setting& setting) {
  if (setting.value == "True") return true;
  if (setting.value == "False") return false;
  refuse(setting, formatted("Expected 'True' or 'False' but got '{}'", setting.value));
}

template <typename Enumeration>
Enumeration parse_choice(const Setting& setting,
                         std::initializer_list<std::pair<std::string_view, Enumeration>> choices, const char* rule) {
  for (const auto& [name, value] : choices) {
    if (setting.value == name) return value;
  }
  refuse(setting, rule);
}

std::size_t parse_divisions(const Setting& setting, std::string_view text) {
  const std::size_t divisions = parse_count(setting, text);
  if (divisions != 0 && !std::has_single_bit(divisions)) {
    refuse(setting,
           formatted("For roundups, the divisions has to be power of 2 or 0 to disable roundup, got {}", text));
  }
  return divisions;
}

std::size_t parse_slot(const Setting& setting, std::string_view text) {
  const std::size_t mib = parse_count(setting, text);
  if (!std::has_single_bit(mib)) {
    refuse(setting, formatted("For roundups, the intervals have to be power of 2, got {}", text));
  }
  return std::min(static_cast<std::size_t>(std::countr_zero(mib)), Options::kRoundupSlots - 1);
}

// ---- Keys -----------------------------------------------------------------------------------------------------------

void set_large_segment_size(const Setting& setting, Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes <= kMinLargeAlloc) refuse(setting, "CachingAllocator option large_segment_size_mb must be > 10 MB");
  const bool is_default = options.max_non_split_rounding == options.large_segment_size;
  options.large_segment_size = bytes;
  if (is_default) options.max_non_split_rounding = bytes;
}

void set_max_split_size(const Setting& setting, Options& options) {
  options.max_split_size = parse_at_least_one_segment(setting, options);
}

void set_max_non_split_rounding(const Setting& setting, Options& options) {
  options.max_non_split_rounding = parse_at_least_one_segment(setting, options);
}

void set_garbage_collection_threshold(const Setting& setting, Options& options) {
  const double threshold = parse_real(setting);
  if (!(threshold > 0 && threshold < 1)) {
    refuse(setting, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
  }
  options.garbage_collection_threshold = threshold;
}

// The first interval given also fills the slots below it, a later one only its own; '>' fills the slots after the last
// one given, from slot 1 on when there is none: PyTorch's rules, that oddity included.
void set_roundup_list(const Setting& setting, Options& options) {
  auto& slots = options.roundup_power2_divisions;
  std::size_t last = 0;
  bool first = true;
  for (const Interval& interval : setting.intervals) {
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

void set_roundup_power2_divisions(const Setting& setting, Options& options) {
  if (setting.is_list) return set_roundup_list(setting, options);
  const std::size_t divisions = parse_count(setting, setting.value);
  if (!std::has_single_bit(divisions)) refuse(setting, "For roundups, the divisions has to be power of 2");
  options.roundup_power2_divisions.fill(divisions);
}

void set_per_process_memory_fraction(const Setting& setting, Options& options) {
  const double fraction = parse_real(setting);
  if (!(fraction >= 0 && fraction <= 1)) {
    refuse(setting, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
  }
  options.per_process_memory_fraction = fraction;
}

template <bool Options::*member>
void set_bool(const Setting& setting, Options& options) {
  options.*member = parse_bool(setting);
}

void set_pinned_num_register_threads(const Setting& setting, Options& options) {
  constexpr std::size_t kMaxThreads = 128;  // CUDAAllocatorConfig::pinned_max_register_threads
  const std::size_t threads = parse_count(setting, setting.value);
  if (!std::has_single_bit(threads)) {
    refuse(setting, formatted("Number of register threads has to be power of 2, got {}", threads));
  }
  if (threads > kMaxThreads) {
    refuse(setting,
           formatted("Number of register threads should be less than or equal to {}, got {}", kMaxThreads, threads));
  }
  options.pinned_num_register_threads = threads;
}

void set_pinned_reserve_segment_size(const Setting& setting, Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes == 0) refuse(setting, "Pinned reserve segment size has to be greater than 0");
  options.pinned_reserve_segment_size = bytes;
}

void set_backend(const Setting& setting, Options&) {
  if (setting.value == "cudaMallocAsync") refuse(setting, "cachalot is a native backend; set native or nothing");
  if (setting.value != "native") refuse(setting, "Unknown allocator backend, options are native and cudaMallocAsync");
}

constexpr std::size_t kLargestPage = kMiB << 10;

void set_heap(const Setting& setting, Options& options) {
  options.heap = parse_choice<HeapKind>(setting, {{"segments", HeapKind::segments}, {"pages", HeapKind::pages}},
                                        "Unknown heap, options are segments and pages");
}

void set_cross_stream(const Setting& setting, Options& options) {
  options.cross_stream = parse_choice<CrossStream>(setting,
                                                   {{"off", CrossStream::off},
                                                    {"completed", CrossStream::completed},
                                                    {"scarce", CrossStream::scarce},
                                                    {"wait", CrossStream::wait}},
                                                   "options are off, completed, scarce and wait");
}

void set_remap_slack(const Setting& setting, Options& options) {
  const double slack = parse_real(setting);
  if (!(slack >= 0 && slack <= 1)) refuse(setting, "it must be in [0.0, 1.0]");
  options.remap_slack = slack;
}

void set_page_size(const Setting& setting, Options& options) {
  const std::size_t bytes = parse_mib(setting);
  if (bytes % kSmallBuffer != 0 || bytes > kLargestPage)
    refuse(setting, formatted("it must be a multiple of 2 and at most {}; 0 means 32, or less where memory is scarce",
                              kLargestPage / kMiB));
  options.page_size = bytes;
}

void set_max_mappings(const Setting& setting, Options& options) {
  options.max_mappings = parse_count(setting, setting.value);
  if (options.max_mappings == 0) refuse(setting, "it must be > 0");
}

void set_thread_cache(const Setting& setting, Options& options) { options.thread_cache = parse_bool(setting); }

void set_guard(const Setting& setting, Options& options) { options.guard = parse_bool(setting); }

void set_guard_quarantine(const Setting& setting, Options& options) { options.guard_quarantine = parse_mib(setting); }

struct Key {
  std::string_view name;
  std::string_view alias;  // PyTorch's name for it in ROCm builds
  void (*set)(const Setting&, Options&);
  bool takes_list = false;
};

// In the order in which they are applied, wherever they stand in the text: large_segment_size_mb bounds others.
constexpr Key kKeys[] = {
    {"large_segment_size_mb", "", set_large_segment_size},
    {"max_split_size_mb", "", set_max_split_size},
    {"max_non_split_rounding_mb", "", set_max_non_split_rounding},
    {"garbage_collection_threshold", "", set_garbage_collection_threshold},
    {"roundup_power2_divisions", "", set_roundup_power2_divisions, true},
    {"per_process_memory_fraction", "", set_per_process_memory_fraction},
    {"expandable_segments", "", set_bool<&Options::expandable_segments>},
    {"release_lock_on_cudamalloc", "release_lock_on_hipmalloc", set_bool<&Options::release_lock_on_cudamalloc>},
    {"graph_capture_record_stream_reuse", "", set_bool<&Options::graph_capture_record_stream_reuse>},
    {"pinned_use_background_threads", "", set_bool<&Options::pinned_use_background_threads>},
    {"pinned_use_cuda_host_register", "pinned_use_hip_host_register",
     set_bool<&Options::pinned_use_cuda_host_register>},
    {"pinned_num_register_threads", "", set_pinned_num_register_threads},
    {"pinned_reserve_segment_size_mb", "", set_pinned_reserve_segment_size},
    {"backend", "", set_backend},
    {"heap", "", set_heap},
    {"cross_stream", "", set_cross_stream},
    {"immortal_streams", "", set_bool<&Options::immortal_streams>},
    {"remap_slack", "", set_remap_slack},
    {"page_size_mb", "", set_page_size},
    {"max_mappings", "", set_max_mappings},
    {"thread_cache", "", set_thread_cache},
    {"guard", "", set_guard},
    {"guard_quarantine_mb", "", set_guard_quarantine},
    {"debug", "", set_bool<&Options::debug>},
};

bool names(std::string_view word, const Key& key) {
  return word == key.name || (!key.alias.empty() && word == key.alias);
}

void require_known(const Setting& setting) {
  if (is_option(setting.key)) return;
  std::array<std::string_view, std::size(kKeys)> known;
  std::ranges::transform(kKeys, known.begin(), &Key::name);
  const std::string suggestion = did_you_mean(setting.key, known);
  throw InvalidArgument(formatted("Unrecognized key '{}' in CUDA allocator config (value '{}'){}{}", setting.key,
                                  shown(setting.value), suggestion.empty() ? "" : "; ", suggestion));
}

// The one setting of `key`, or null.
const Setting* find_setting(const Key& key, const std::vector<Setting>& settings) {
  const auto is_it = [&](const Setting& setting) { return names(setting.key, key); };
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
  return std::ranges::any_of(kKeys, [&](const Key& known) { return names(key, known); });
}

std::vector<std::string> options_without_effect(const Options& options) {
  constexpr std::string_view kPinned =
      "PinnedHostAllocator does not use it; for PyTorch's pinned memory, set it in PYTORCH_CUDA_ALLOC_CONF";
  const Options defaults;
  std::vector<std::string> sentences;
  const auto add = [&](std::string_view key, bool is_default, std::string_view why) {
    if (!is_default) sentences.push_back(formatted("option {} has no effect: {}", key, why));
  };
  const auto same = [&](auto member) { return options.*member == defaults.*member; };
  add("graph_capture_record_stream_reuse", same(&Options::graph_capture_record_stream_reuse),
      "memory that a capture uses on several streams is reused after the capture only");
  add("pinned_use_background_threads", same(&Options::pinned_use_background_threads), kPinned);
  add("pinned_use_cuda_host_register", same(&Options::pinned_use_cuda_host_register), kPinned);
  add("pinned_num_register_threads", same(&Options::pinned_num_register_threads), kPinned);
  add("pinned_reserve_segment_size_mb", same(&Options::pinned_reserve_segment_size), kPinned);
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
  const std::vector<Setting> settings = Grammar(tokenize(text)).read();
  std::ranges::for_each(settings, require_known);

  Options options = base;
  for (const Key& key : kKeys) {
    if (const Setting* setting = find_setting(key, settings)) key.set(*setting, options);
  }
  // A text that names segments means them, whatever an earlier one says of expandable segments.
  const auto is_given = [&](std::string_view key) {
    return std::ranges::any_of(settings, [&](const Setting& setting) { return setting.key == key; });
  };
  if (is_given("heap") && options.heap == HeapKind::segments && !is_given("expandable_segments")) {
    options.expandable_segments = false;
  }
  if (options.large_segment_size != base.large_segment_size) require_room_for_segments(options);
  options.text = std::string(text);
  return options;
}

}  // namespace cachalot
