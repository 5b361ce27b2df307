#include "tools/analysis/program_settings.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"

namespace cachalot::tools {
namespace {

// Splits at the commas outside of brackets.
std::vector<std::string_view> parts_of(std::string_view settings) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= settings.size(); ++i) {
    const char c = i < settings.size() ? settings[i] : ',';
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c != ',' || (depth > 0 && i < settings.size())) continue;
    parts.push_back(settings.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

std::string_view key_of_setting(std::string_view part) {
  const std::size_t begin = std::min(part.find_first_not_of(' '), part.size());
  return part.substr(begin, part.find(':', begin) - begin);
}

bool is_valid(std::string_view part) {
  try {
    parse_options(part);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

// Returns the heap with those settings that have one of the keys.
std::string config_with(std::string_view settings, const char* heap, std::span<const std::string_view> keys,
                        std::string_view without) {
  constexpr std::size_t kLongest = 4096;
  std::string config = heap;
  for (const std::string_view part : parts_of(settings.substr(0, kLongest))) {
    const std::string_view key = key_of_setting(part);
    if (key == without || std::ranges::find(keys, key) == keys.end() || !is_valid(part)) continue;
    config.append(",").append(part);
  }
  return is_valid(config) ? config : heap;
}

}  // namespace

std::string segment_config(std::string_view settings, std::string_view without) {
  constexpr std::array<std::string_view, 4> kOfSegments = {"max_split_size_mb", "max_non_split_rounding_mb",
                                                           "roundup_power2_divisions", "large_segment_size_mb"};
  return config_with(settings, "heap:segments", kOfSegments, without);
}

std::string page_config(std::string_view settings) {
  constexpr std::array<std::string_view, 1> kOfPages = {"roundup_power2_divisions"};
  return config_with(settings, "heap:pages", kOfPages, "");
}

Options segment_options(std::string_view settings) { return parse_options(segment_config(settings)); }

bool is_expandable(std::string_view settings) {
  return std::ranges::any_of(parts_of(settings), [](std::string_view part) {
    return key_of_setting(part) == "expandable_segments" && part.ends_with("True");
  });
}

Policy policy_of_settings(std::string_view settings) {
  if (is_expandable(settings)) return {.heap = Policy::Heap::expandable_segments};
  const std::string config = segment_config(settings);
  const Options options = parse_options(config);
  Policy policy;
  if (options.max_split_size != Options::kUnlimited) policy.max_split_size_mb = options.max_split_size / kMiB;
  policy.roundup_power2_divisions = options.roundup_power2_divisions.front();
  const std::string same = policy == Policy() ? "heap:segments" : "heap:segments," + key_of(policy);
  return parse_options(same) == options ? policy : Policy{.options = config};
}

}  // namespace cachalot::tools
