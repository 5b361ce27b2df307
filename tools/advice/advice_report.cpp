#include "tools/advice/advice_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/json_text.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kMostColumns = 8;  // of GPUs
constexpr std::string_view kNoSetting = "(PyTorch's default)";

std::string overhead_text(std::size_t reserved, std::size_t requested) {
  if (requested == 0) return "-";
  return fmt::format("{:.1f} %", 100 * (static_cast<double>(reserved) / static_cast<double>(requested) - 1));
}

std::string smallest_text(const PolicyAdvice& one) {
  if (one.smallest_gpu.empty()) return "none";
  return fmt::format("{}{}", one.smallest_gpu, one.is_smallest_unsure ? "?" : "");
}

std::string host_text(const PolicyAdvice& one, const PolicyAdvice& native) {
  if (one.ns_per_event == 0 || native.ns_per_event == 0) return "-";
  return fmt::format("{:.2f}", one.ns_per_event / native.ns_per_event);
}

bool has_columns(const Advice& advice) { return !advice.gpus.empty() && advice.gpus.size() <= kMostColumns; }

std::string gpu_headings(const Advice& advice) {
  std::string text;
  if (!has_columns(advice)) return text;
  for (const std::string& gpu : advice.gpus) text += fmt::format("  {}", gpu);
  return text;
}

std::string gpu_cells(const PolicyAdvice& one, const Advice& advice, const Style& style) {
  std::string text;
  if (!has_columns(advice)) return text;
  for (const std::string& gpu : advice.gpus) {
    const bool completes = std::ranges::find(one.gpus, gpu) != one.gpus.end();
    const std::string cell = fmt::format("  {:>{}}", completes ? "yes" : "no", gpu.size());
    text += completes ? style.good(cell) : style.bad(cell);
  }
  return text;
}

constexpr std::string_view kRow = "{:>10} {:>8} {:>6}  {:<15} {:>9} {:>5}";

std::string row_of(const PolicyAdvice& one, const Advice& advice, const Style& style) {
  const bool is_choice = one.policy == advice.recommendation.policy;
  const std::string figures =
      fmt::format(fmt::runtime(kRow), format_bytes(one.peak_reserved_bytes),
                  overhead_text(one.peak_reserved_bytes, advice.peak_requested_bytes), one.ooms, smallest_text(one),
                  fmt::format("{:.1f}", one.driver_us / 1000), host_text(one, advice.native()));
  const std::string line = one.line.empty() ? std::string(kNoSetting) : one.line;
  return figures + gpu_cells(one, advice, style) + "  " + (is_choice ? style.good(line) : line) + "\n";
}

std::string place_text(const Advice& advice) {
  const std::string usable = format_bytes(advice.on.usable_bytes);
  return advice.on.gpu.empty() ? usable : fmt::format("{} ({})", usable, advice.on.gpu);
}

// What the figures of the policy that the program had are worth.
std::string exactness_text(const Advice& advice) {
  if (!advice.recorded_reserved_bytes) return "";
  const std::size_t recorded = *advice.recorded_reserved_bytes;
  for (const PolicyAdvice& one : advice.policies) {
    if (one.peak_reserved_bytes == recorded)
      return fmt::format("The program itself reserved {}, as the replay with {}.\n", format_bytes(recorded),
                         one.policy);
  }
  return fmt::format("The program itself reserved {}; the replay with PyTorch's default, {}.\n", format_bytes(recorded),
                     format_bytes(advice.native().peak_reserved_bytes));
}

constexpr std::string_view kAdviceLegend =
    "reserved: the most memory that the allocator takes from the GPU; over: how much that is over what is requested at "
    "once. fails: allocations without memory. smallest GPU: the one that completes, with the context's share. driver: "
    "simulated time of its calls. host: time of a malloc or free, 1 is PyTorch's default in this run.";

// A file that was read, with most bytes to be saved first; then the others.
bool comes_before(const Advice& one, const Advice& other) {
  if (one.error.empty() != other.error.empty()) return one.error.empty();
  return one.recommendation.saved_bytes > other.recommendation.saved_bytes;
}

std::string name_of(const Advice& advice) {
  return advice.device == 0 ? advice.file : fmt::format("{} device {}", advice.file, advice.device);
}

constexpr std::string_view kFleetRow = "{:>10} {:>10} {:>10} {:>6}  {:<{}}  {}\n";

std::string fleet_row(const Advice& advice, std::size_t width) {
  if (!advice.error.empty())
    return fmt::format(fmt::runtime(kFleetRow), "-", "-", "-", "-", "error", width, advice.error);
  return fmt::format(fmt::runtime(kFleetRow), format_bytes(advice.recommendation.saved_bytes),
                     format_bytes(advice.native().peak_reserved_bytes), format_bytes(advice.peak_requested_bytes),
                     advice.native().ooms, advice.recommendation.policy, width, name_of(advice));
}

// "Together … can be saved: heap:pages for 3 programs, native for 1."
std::string fleet_sentence(const std::vector<Advice>& advices) {
  std::size_t saved = 0;
  std::size_t reserved = 0;
  std::size_t failed = 0;
  std::map<std::string, std::size_t> counts;
  for (const Advice& advice : advices) {
    if (!advice.error.empty()) {
      ++failed;
      continue;
    }
    saved += advice.recommendation.saved_bytes;
    reserved += advice.native().peak_reserved_bytes;
    ++counts[advice.recommendation.policy];
  }
  std::vector<std::pair<std::string, std::size_t>> by_count(counts.begin(), counts.end());
  std::ranges::stable_sort(by_count, std::ranges::greater(), &std::pair<std::string, std::size_t>::second);
  std::string text = fmt::format("{} of {} reserved can be saved", format_bytes(saved), format_bytes(reserved));
  for (std::size_t i = 0; i < by_count.size(); ++i) {
    text += fmt::format("{}{} for {}", i == 0 ? ": " : ", ", by_count[i].first,
                        format_count(by_count[i].second, "program"));
  }
  if (failed > 0) text += fmt::format("; {} cannot be read", format_count(failed, "file"));
  return text + ".";
}

}  // namespace

std::string to_text(const Advice& advice, const Style& style) {
  std::string text = style.bold(name_of(advice)) + "\n";
  text += fmt::format("  {} events, {} requested at the peak, played on {}\n", with_commas(advice.events),
                      format_bytes(advice.peak_requested_bytes), place_text(advice));
  if (advice.replays < advice.settings)
    text += fmt::format("  {} of {} settings were played; the others do the same as one of these\n", advice.replays,
                        advice.settings);
  text += style.bold(fmt::format(fmt::runtime(kRow), "reserved", "over", "fails", "smallest GPU", "driver ms", "host") +
                     gpu_headings(advice) + "  to set") +
          "\n";
  for (const PolicyAdvice& one : advice.policies) text += row_of(one, advice, style);
  text += "\n" + wrapped(kAdviceLegend, 0) + wrapped(exactness_text(advice), 0);
  return text + style.bold(wrapped(advice.recommendation.sentence, 0));
}

std::string fleet_text(std::vector<Advice> advices, const Style& style) {
  std::ranges::stable_sort(advices, comes_before);
  std::size_t width = std::string_view("recommended").size();
  for (const Advice& advice : advices) width = std::max(width, advice.recommendation.policy.size());
  std::string text = style.bold(
      fmt::format(fmt::runtime(kFleetRow), "saved", "reserved", "requested", "fails", "recommended", width, "program"));
  for (const Advice& advice : advices) text += fleet_row(advice, width);
  return text + "\n" + style.bold(wrapped(fleet_sentence(advices), 0));
}

namespace {

using Json = nlohmann::ordered_json;

double overhead_of(std::size_t reserved, std::size_t requested) {
  return requested == 0 ? 0 : static_cast<double>(reserved) / static_cast<double>(requested) - 1;
}

template <typename Value>
Json or_null(bool is_known, const Value& value) {
  return is_known ? Json(value) : Json(nullptr);
}

Json json_of(const PolicyAdvice& one, const Advice& advice) {
  const double native_ns = advice.native().ns_per_event;
  const bool has_ns = one.ns_per_event > 0;
  return {{"policy", one.policy},
          {"line", one.line},
          {"peak_reserved_bytes", one.peak_reserved_bytes},
          {"overhead", overhead_of(one.peak_reserved_bytes, advice.peak_requested_bytes)},
          {"ooms", one.ooms},
          {"driver_us", one.driver_us},
          {"smallest_gpu", or_null(!one.smallest_gpu.empty(), one.smallest_gpu)},
          {"smallest_gpu_bytes", or_null(!one.smallest_gpu.empty(), one.smallest_gpu_bytes)},
          {"smallest_gpu_unsure", one.is_smallest_unsure},
          {"gpus", one.gpus},
          {"ns_per_event", or_null(has_ns, one.ns_per_event)},
          {"host_time", or_null(has_ns && native_ns > 0, one.ns_per_event / native_ns)}};
}

PolicyAdvice policy_of_json(const Json& json) {
  PolicyAdvice one;
  one.policy = json.at("policy");
  one.line = json.at("line");
  one.peak_reserved_bytes = json.at("peak_reserved_bytes");
  one.ooms = json.at("ooms");
  one.driver_us = json.at("driver_us");
  if (!json.at("smallest_gpu").is_null()) {
    one.smallest_gpu = json.at("smallest_gpu");
    one.smallest_gpu_bytes = json.at("smallest_gpu_bytes");
  }
  one.is_smallest_unsure = json.at("smallest_gpu_unsure");
  one.gpus = json.at("gpus").get<std::vector<std::string>>();
  if (!json.at("ns_per_event").is_null()) one.ns_per_event = json.at("ns_per_event");
  return one;
}

Advice advice_of(const Json& json) {
  Advice advice;
  advice.file = json.at("file");
  if (json.contains("error")) {
    advice.error = json.at("error");
    return advice;
  }
  advice.device = json.at("device");
  advice.events = json.at("events");
  advice.peak_requested_bytes = json.at("peak_requested_bytes");
  const Json& on = json.at("on");
  advice.on = {.gpu = on.at("gpu").is_null() ? "" : on.at("gpu").get<std::string>(),
               .memory_bytes = on.at("memory_bytes"),
               .usable_bytes = on.at("usable_bytes")};
  if (!json.at("recorded_reserved_bytes").is_null())
    advice.recorded_reserved_bytes = json.at("recorded_reserved_bytes").get<std::size_t>();
  advice.gpus = json.at("gpus").get<std::vector<std::string>>();
  advice.settings = json.at("settings");
  advice.replays = json.at("replays");
  for (const Json& one : json.at("policies")) advice.policies.push_back(policy_of_json(one));
  CACHALOT_REQUIRE(std::ranges::find(advice.policies, "native", &PolicyAdvice::policy) != advice.policies.end(),
                   "advice about {} lacks the policy native", advice.file);
  const Json& recommendation = json.at("recommendation");
  advice.recommendation = {.policy = recommendation.at("policy"),
                           .line = recommendation.at("line"),
                           .saved_bytes = recommendation.at("saved_bytes"),
                           .sentence = recommendation.at("sentence")};
  return advice;
}

}  // namespace

std::string to_json(const Advice& advice) {
  Json json = {{"file", advice.file}};
  if (!advice.error.empty()) {
    json["error"] = advice.error;
    return text_of(json);
  }
  json["device"] = advice.device;
  json["events"] = advice.events;
  json["peak_requested_bytes"] = advice.peak_requested_bytes;
  json["on"] = {{"gpu", or_null(!advice.on.gpu.empty(), advice.on.gpu)},
                {"memory_bytes", advice.on.memory_bytes},
                {"usable_bytes", advice.on.usable_bytes}};
  json["recorded_reserved_bytes"] =
      or_null(advice.recorded_reserved_bytes.has_value(), advice.recorded_reserved_bytes.value_or(0));
  json["gpus"] = advice.gpus;
  json["settings"] = advice.settings;
  json["replays"] = advice.replays;
  json["policies"] = Json::array();
  for (const PolicyAdvice& one : advice.policies) json["policies"].push_back(json_of(one, advice));
  json["recommendation"] = {{"policy", advice.recommendation.policy},
                            {"line", advice.recommendation.line},
                            {"saved_bytes", advice.recommendation.saved_bytes},
                            {"sentence", advice.recommendation.sentence}};
  return text_of(json);
}

Advice advice_of_json(std::string_view text) {
  try {
    return advice_of(Json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(std::string("no advice as JSON: ") + error.what());
  }
}

}  // namespace cachalot::tools
