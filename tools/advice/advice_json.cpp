#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/advice/advice_report.h"
#include "tools/json_text.h"

namespace cachalot::tools {
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
