#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/suggestions.h"
#include "cachalot/options.h"
#include "policy/accepted_without_effect.h"
#include "policy/option_keys.h"
#include "policy/shown_text.h"

CACHALOT_BEGIN
namespace {

// Every member: the bindings do not compile when one is missing here.
auto members_of(const Options& options) {
  const auto& [large_segment_size, max_split_size, max_non_split_rounding, garbage_collection_threshold,
               roundup_power2_divisions, per_process_memory_fraction, limit, throw_on_cudamalloc_oom,
               expandable_segments, pinned_limit, heap, cross_stream, immortal_streams, remap_slack, page_size,
               background_thread, thread_cache, guard, debug, without_effect, text] = options;
  return std::tie(large_segment_size, max_split_size, max_non_split_rounding, garbage_collection_threshold,
                  roundup_power2_divisions, per_process_memory_fraction, limit, throw_on_cudamalloc_oom,
                  expandable_segments, pinned_limit, heap, cross_stream, immortal_streams, remap_slack, page_size,
                  background_thread, thread_cache, guard, debug, without_effect, text);
}

// Why the key is unknown, where that can be said.
std::string hint(std::string_view key) {
  if (key == "max_mappings" || key == "guard_quarantine_mb") return "the option is gone: leave it out";
  std::vector<std::string_view> known;
  for (const OptionKey& option : option_keys()) known.push_back(option.name);
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
  return std::ranges::any_of(option_keys(), [&](const OptionKey& known) { return known.is_named(key); });
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
  for (const OptionKey& key : option_keys()) {
    if (const OptionSetting* setting = find_setting(key, settings)) key.set(*setting, options);
  }
  // A text that names segments means them, whatever an earlier one says of expandable segments.
  const auto is_given = [&](std::string_view key) {
    return std::ranges::any_of(settings, [&](const OptionSetting& setting) { return setting.key == key; });
  };
  if (is_given("heap") && options.heap == HeapKind::segments && !is_given("expandable_segments")) {
    options.expandable_segments = false;
  }
  if (options.large_segment_size != base.large_segment_size) require_room_for_segments(options);
  options.text = std::string(text);
  return options;
}

CACHALOT_END
