#include "tools/live/sample_json.h"

#include <cmath>

#include "tools/live/figures.h"

namespace cachalot::tools::live {
namespace {

using Json = nlohmann::ordered_json;

// Six digits behind the point are enough for a time and a ratio, and keep a line short.
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

}  // namespace cachalot::tools::live
