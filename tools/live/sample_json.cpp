#include "tools/live/sample_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cachalot/errors.h"
#include "cachalot/statistics_page.h"
#include "tools/live/figures.h"
#include "tools/quoted.h"

namespace cachalot::tools::live {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostText = 4096;

// Six digits behind the point are enough for a time and a ratio, and keep a record small.
double rounded(double number) { return std::round(number * 1e6) / 1e6; }

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

template <typename Value>
Json value_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const PoolSample& pool) {
  Json json = {{"pool", pool.id}, {"tag", text_or_null(pool.tag)}, {"is_asleep", pool.is_asleep}};
  for (const Figure<PoolSample>& figure : kPoolFigures) json[std::string(figure.key)] = pool.*figure.member;
  return json;
}

Json to_json(const std::optional<Rates>& rates) {
  if (!rates) return nullptr;
  return {{"allocations_per_s", rounded(rates->allocations)},
          {"frees_per_s", rounded(rates->frees)},
          {"allocated_bytes_per_s", rounded(rates->allocated_bytes)},
          {"driver_calls_per_s", rounded(rates->driver_calls)}};
}

Json to_json(const DeviceSample& device) {
  Json json = {{"device", device.index}, {"name", device.name}, {"uuid", text_or_null(device.uuid)}};
  for (const Figure<DeviceSample>& figure : kDeviceFigures) json[std::string(figure.key)] = device.*figure.member;
  json["limit_bytes"] = value_or_null(device.limit_bytes);
  json["soft_limit_bytes"] = value_or_null(device.soft_limit_bytes);
  json["internal_fragmentation"] = rounded(device.internal_fragmentation());
  json["external_fragmentation"] = rounded(device.external_fragmentation());
  json["rates"] = to_json(device.rates);
  json["pool_count"] = device.pool_count;
  json["pools"] = Json::array();
  for (const PoolSample& pool : device.pools) json["pools"].push_back(to_json(pool));
  return json;
}

Json to_json(const ProcessSample& process) {
  Json json = {{"pid", process.pid},
               {"start", process.start},
               {"page", process.page},
               {"command", process.command},
               {"version", process.version},
               {"published", rounded(process.published)},
               {"refreshed", rounded(process.refreshed)},
               {"elapsed_s", rounded(process.elapsed_s)},
               {"refreshes", process.refreshes},
               {"cpu_s", rounded(process.cpu_s)}};
  json["devices"] = Json::array();
  for (const DeviceSample& device : process.devices) json["devices"].push_back(to_json(device));
  return json;
}

Json to_json(const GpuSample& gpu) {
  Json json = {{"gpu", gpu.index},
               {"name", gpu.name},
               {"uuid", text_or_null(gpu.uuid)},
               {"total_bytes", gpu.total_bytes},
               {"used_bytes", gpu.used_bytes}};
  json["processes"] = Json::array();
  for (const GpuProcess& each : gpu.processes) {
    json["processes"].push_back({{"pid", each.pid}, {"used_bytes", value_or_null(each.used_bytes)}});
  }
  return json;
}

// ---- Reading ---------------------------------------------------------------------------------------------------------

[[noreturn]] void refuse(std::string_view key, std::string_view rule) {
  throw InvalidArgument(fmt::format("'{}' {}", key, rule));
}

const Json* find(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::uint64_t> number(const Json& object, std::string_view key) {
  const Json* const value = find(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_unsigned()) refuse(key, "is no whole number of at least 0");
  return value->get<std::uint64_t>();
}

double decimal(const Json& object, std::string_view key) {
  const Json* const value = find(object, key);
  if (value == nullptr) return 0;
  if (!value->is_number()) refuse(key, "is no number");
  return value->get<double>();
}

std::string text(const Json& object, std::string_view key) {
  const Json* const value = find(object, key);
  if (value == nullptr) return "";
  if (!value->is_string()) refuse(key, "is no text");
  return value->get_ref<const std::string&>().substr(0, kMostText);
}

template <typename Parse>
auto list(const Json& object, std::string_view key, std::size_t most, Parse parse) {
  std::vector<decltype(parse(object))> values;
  const Json* const array = find(object, key);
  if (array == nullptr) return values;
  if (!array->is_array() || array->size() > most) refuse(key, fmt::format("is no array of at most {} objects", most));
  for (const Json& each : *array) {
    if (!each.is_object()) refuse(key, "has an element that is no object");
    values.push_back(parse(each));
  }
  return values;
}

PoolSample parse_pool(const Json& json) {
  PoolSample pool;
  pool.tag = text(json, "tag");
  if (const Json* const id = find(json, "pool")) {
    if (!id->is_array() || id->size() != 2 || !(*id)[0].is_number_unsigned() || !(*id)[1].is_number_unsigned()) {
      refuse("pool", "is no array of two numbers");
    }
    pool.id = {(*id)[0].get<std::uint64_t>(), (*id)[1].get<std::uint64_t>()};
  }
  const Json* const is_asleep = find(json, "is_asleep");
  pool.is_asleep = is_asleep != nullptr && is_asleep->is_boolean() && is_asleep->get<bool>();
  for (const Figure<PoolSample>& figure : kPoolFigures) pool.*figure.member = number(json, figure.key).value_or(0);
  return pool;
}

std::optional<Rates> parse_rates(const Json& json) {
  const Json* const rates = find(json, "rates");
  if (rates == nullptr) return std::nullopt;
  if (!rates->is_object()) refuse("rates", "is no object");
  return Rates{.allocations = decimal(*rates, "allocations_per_s"),
               .frees = decimal(*rates, "frees_per_s"),
               .allocated_bytes = decimal(*rates, "allocated_bytes_per_s"),
               .driver_calls = decimal(*rates, "driver_calls_per_s")};
}

DeviceSample parse_device(const Json& json) {
  DeviceSample device;
  const std::uint64_t index = number(json, "device").value_or(0);
  if (index >= kStatisticsPageDevices)
    refuse("device", fmt::format("is {}, not below {}", index, kStatisticsPageDevices));
  device.index = static_cast<int>(index);
  device.name = text(json, "name");
  device.uuid = text(json, "uuid");
  for (const Figure<DeviceSample>& figure : kDeviceFigures)
    device.*figure.member = number(json, figure.key).value_or(0);
  device.limit_bytes = number(json, "limit_bytes");
  device.soft_limit_bytes = number(json, "soft_limit_bytes");
  device.rates = parse_rates(json);
  device.pool_count = number(json, "pool_count").value_or(0);
  device.pools = list(json, "pools", kStatisticsPagePools, parse_pool);
  return device;
}

ProcessSample parse_process(const Json& json) {
  ProcessSample process;
  process.pid = number(json, "pid").value_or(0);
  process.start = number(json, "start").value_or(0);
  process.page = text(json, "page");
  process.command = text(json, "command");
  process.version = text(json, "version");
  process.published = decimal(json, "published");
  process.refreshed = decimal(json, "refreshed");
  process.elapsed_s = decimal(json, "elapsed_s");
  process.refreshes = number(json, "refreshes").value_or(0);
  process.cpu_s = decimal(json, "cpu_s");
  process.devices = list(json, "devices", kStatisticsPageDevices, parse_device);
  return process;
}

GpuSample parse_gpu(const Json& json) {
  GpuSample gpu;
  gpu.index = static_cast<int>(std::min<std::uint64_t>(number(json, "gpu").value_or(0), 1U << 20));
  gpu.name = text(json, "name");
  gpu.uuid = text(json, "uuid");
  gpu.total_bytes = number(json, "total_bytes").value_or(0);
  gpu.used_bytes = number(json, "used_bytes").value_or(0);
  gpu.processes = list(json, "processes", kMostProcesses, [](const Json& each) {
    return GpuProcess{number(each, "pid").value_or(0), number(each, "used_bytes")};
  });
  return gpu;
}

}  // namespace

Json to_json(const Sample& sample) {
  Json json = {{"time", rounded(sample.time)}};
  json["processes"] = Json::array();
  for (const ProcessSample& process : sample.processes) json["processes"].push_back(to_json(process));
  json["gpus"] = nullptr;
  if (!sample.gpus) return json;
  json["gpus"] = Json::array();
  for (const GpuSample& gpu : *sample.gpus) json["gpus"].push_back(to_json(gpu));
  return json;
}

Json parse_line(std::string_view line) {
  const auto limit_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostSampleDepth)
      throw InvalidArgument(fmt::format("it is nested more than {} deep", kMostSampleDepth));
    return true;
  };
  try {
    Json json = Json::parse(line, limit_depth);
    if (!json.is_object()) throw InvalidArgument(fmt::format("{} is no JSON object", Quoted{line}));
    return json;
  } catch (const Json::exception&) {
    throw InvalidArgument(fmt::format("{} is no JSON", Quoted{line}));
  }
}

Sample parse_sample(std::string_view line) {
  const Json json = parse_line(line);
  if (find(json, "time") == nullptr) refuse("time", "is missing");
  Sample sample;
  sample.time = decimal(json, "time");
  sample.processes = list(json, "processes", kMostProcesses, parse_process);
  if (find(json, "gpus") != nullptr) sample.gpus = list(json, "gpus", kMostProcesses, parse_gpu);
  return sample;
}

}  // namespace cachalot::tools::live
