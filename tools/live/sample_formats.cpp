#include "tools/live/sample_formats.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "cachalot/version.h"
#include "tools/output_file.h"
#include "tools/text_layout.h"

namespace cachalot::tools::live {
namespace {

using Json = nlohmann::ordered_json;

// The figures of a sample by name: JSON and Prometheus take them from these tables.
enum class FigureKind : std::uint8_t { gauge, counter };

template <typename Owner>
struct Figure {
  std::string_view key;  // of JSON
  std::uint64_t Owner::*member;
  FigureKind kind;
  std::string_view metric;  // of Prometheus, without "cachalot_"
  std::string_view help;
};

constexpr Figure<DeviceSample> kDeviceFigures[] = {
    {"total_bytes", &DeviceSample::total_bytes, FigureKind::gauge, "device_total_bytes", "Memory of the device."},
    {"reserved_bytes", &DeviceSample::reserved_bytes, FigureKind::gauge, "reserved_bytes",
     "Memory held from the device."},
    {"allocated_bytes", &DeviceSample::allocated_bytes, FigureKind::gauge, "allocated_bytes",
     "Memory of allocated blocks."},
    {"requested_bytes", &DeviceSample::requested_bytes, FigureKind::gauge, "requested_bytes",
     "Memory that the program asked for."},
    {"active_bytes", &DeviceSample::active_bytes, FigureKind::gauge, "active_bytes",
     "Memory of blocks that are allocated or wait for other streams."},
    {"peak_reserved_bytes", &DeviceSample::peak_reserved_bytes, FigureKind::gauge, "peak_reserved_bytes",
     "Largest reserved memory since the program reset it."},
    {"peak_allocated_bytes", &DeviceSample::peak_allocated_bytes, FigureKind::gauge, "peak_allocated_bytes",
     "Largest allocated memory since the program reset it."},
    {"peak_requested_bytes", &DeviceSample::peak_requested_bytes, FigureKind::gauge, "peak_requested_bytes",
     "Largest requested memory since the program reset it."},
    {"peak_active_bytes", &DeviceSample::peak_active_bytes, FigureKind::gauge, "peak_active_bytes",
     "Largest active memory since the program reset it."},
    {"free_bytes", &DeviceSample::free_bytes, FigureKind::gauge, "free_bytes", "Cached memory in free blocks."},
    {"free_blocks", &DeviceSample::free_blocks, FigureKind::gauge, "free_blocks", "Number of free blocks."},
    {"largest_free_bytes", &DeviceSample::largest_free_bytes, FigureKind::gauge, "largest_free_bytes",
     "Size of the largest free block."},
    {"asleep_bytes", &DeviceSample::asleep_bytes, FigureKind::gauge, "asleep_bytes",
     "Memory given back until it is restored."},
    {"blocks", &DeviceSample::blocks, FigureKind::gauge, "blocks", "Number of allocated blocks."},
    {"segments", &DeviceSample::segments, FigureKind::gauge, "segments", "Number of segments held from the device."},
    {"allocations", &DeviceSample::allocations, FigureKind::counter, "allocations_total", "Allocations so far."},
    {"frees", &DeviceSample::frees, FigureKind::counter, "frees_total", "Frees so far."},
    {"allocated_sum_bytes", &DeviceSample::allocated_sum_bytes, FigureKind::counter, "allocated_bytes_total",
     "Bytes of all blocks allocated so far."},
    {"freed_sum_bytes", &DeviceSample::freed_sum_bytes, FigureKind::counter, "freed_bytes_total",
     "Bytes of all blocks freed so far."},
    {"device_allocations", &DeviceSample::device_allocations, FigureKind::counter, "device_allocations_total",
     "Driver calls that got memory."},
    {"device_frees", &DeviceSample::device_frees, FigureKind::counter, "device_frees_total",
     "Driver calls that gave memory back."},
    {"retries", &DeviceSample::retries, FigureKind::counter, "retries_total",
     "Times the device was asked again after the cache went back."},
    {"ooms", &DeviceSample::ooms, FigureKind::counter, "ooms_total", "Requests that failed for want of memory."},
    {"oom_rejections", &DeviceSample::oom_rejections, FigureKind::counter, "oom_rejections_total",
     "Requests that throw_on_cudamalloc_oom refused."},
    {"stream_waits", &DeviceSample::stream_waits, FigureKind::counter, "stream_waits_total",
     "Times all pending events were waited for."},
};

constexpr Figure<PoolSample> kPoolFigures[] = {
    {"reserved_bytes", &PoolSample::reserved_bytes, FigureKind::gauge, "pool_reserved_bytes",
     "Memory that the pool holds from the device."},
    {"used_bytes", &PoolSample::used_bytes, FigureKind::gauge, "pool_used_bytes",
     "Reserved memory of the pool that is in no free block."},
    {"free_bytes", &PoolSample::free_bytes, FigureKind::gauge, "pool_free_bytes",
     "Cached memory in free blocks of the pool."},
    {"free_blocks", &PoolSample::free_blocks, FigureKind::gauge, "pool_free_blocks",
     "Number of free blocks of the pool."},
    {"largest_free_bytes", &PoolSample::largest_free_bytes, FigureKind::gauge, "pool_largest_free_bytes",
     "Size of the largest free block of the pool."},
    {"asleep_bytes", &PoolSample::asleep_bytes, FigureKind::gauge, "pool_asleep_bytes",
     "Memory of the pool given back until it is restored."},
};

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

namespace {

// A label's value is UTF-8 with three escapes. What is no UTF-8 becomes U+FFFD, and what controls a terminal becomes '?'.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : nlohmann::json::parse(text_of(std::string(text))).get<std::string>()) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      result += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += '?';
    } else {
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
  }
  return result;
}

std::string device_labels(const ProcessSample& process, const DeviceSample& device) {
  return fmt::format("pid=\"{}\",page=\"{}\",command=\"{}\",device=\"{}\",name=\"{}\",uuid=\"{}\"", process.pid,
                     escaped(process.page), escaped(process.command), device.index, escaped(device.name),
                     escaped(device.uuid));
}

std::string pool_labels(const ProcessSample& process, const DeviceSample& device, const PoolSample& pool) {
  return fmt::format("{},pool=\"{}.{}\",tag=\"{}\"", device_labels(process, device), pool.id[0], pool.id[1],
                     escaped(pool.tag));
}

class Metrics {
 public:
  // Begins a metric; without a value, none of it is written.
  void begin(std::string_view name, FigureKind kind, std::string_view help) {
    name_ = name;
    head_ = fmt::format("# HELP cachalot_{0} {1}\n# TYPE cachalot_{0} {2}\n", name, help,
                        kind == FigureKind::counter ? "counter" : "gauge");
  }
  template <typename Number>
  void value(std::string_view labels, Number number) {
    text_ += std::exchange(head_, "");
    text_ += labels.empty() ? fmt::format("cachalot_{} {}\n", name_, number)
                            : fmt::format("cachalot_{}{{{}}} {}\n", name_, labels, number);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
  std::string head_;
};

// Calls visit(process, device) for the devices that are used.
template <typename Visit>
void for_each_device(const Sample& sample, Visit visit) {
  for (const ProcessSample& process : sample.processes) {
    for (const DeviceSample& device : process.devices) {
      if (device.is_used()) visit(process, device);
    }
  }
}

void put_devices(const Sample& sample, Metrics& metrics) {
  const auto put = [&](auto value_of) {
    for_each_device(sample, [&](const ProcessSample& process, const DeviceSample& device) {
      if (const auto value = value_of(device)) metrics.value(device_labels(process, device), *value);
    });
  };
  for (const Figure<DeviceSample>& figure : kDeviceFigures) {
    metrics.begin(figure.metric, figure.kind, figure.help);
    put([&](const DeviceSample& device) { return std::optional(device.*figure.member); });
  }
  metrics.begin("limit_bytes", FigureKind::gauge, "Lowest limit of reserved memory, where there is one.");
  put([](const DeviceSample& device) { return device.limit_bytes; });
  metrics.begin("internal_fragmentation_ratio", FigureKind::gauge, "1 - requested / active memory.");
  put([](const DeviceSample& device) { return std::optional(device.internal_fragmentation()); });
  metrics.begin("external_fragmentation_ratio", FigureKind::gauge, "1 - largest free block / free memory.");
  put([](const DeviceSample& device) { return std::optional(device.external_fragmentation()); });
}

void put_pools(const Sample& sample, Metrics& metrics) {
  const auto put = [&](auto value_of) {
    for_each_device(sample, [&](const ProcessSample& process, const DeviceSample& device) {
      for (const PoolSample& pool : device.pools) metrics.value(pool_labels(process, device, pool), value_of(pool));
    });
  };
  for (const Figure<PoolSample>& figure : kPoolFigures) {
    metrics.begin(figure.metric, figure.kind, figure.help);
    put([&](const PoolSample& pool) { return pool.*figure.member; });
  }
  metrics.begin("pool_asleep", FigureKind::gauge, "1 while the pool is asleep.");
  put([](const PoolSample& pool) { return pool.is_asleep ? 1 : 0; });
}

std::string gpu_labels(const GpuSample& gpu) {
  return fmt::format("gpu=\"{}\",name=\"{}\",uuid=\"{}\"", gpu.index, escaped(gpu.name), escaped(gpu.uuid));
}

void put_gpus(const std::vector<GpuSample>& gpus, Metrics& metrics) {
  metrics.begin("gpu_total_bytes", FigureKind::gauge, "Memory of the GPU, as NVML has it.");
  for (const GpuSample& gpu : gpus) metrics.value(gpu_labels(gpu), gpu.total_bytes);
  metrics.begin("gpu_used_bytes", FigureKind::gauge, "Memory that all processes use, as NVML has it.");
  for (const GpuSample& gpu : gpus) metrics.value(gpu_labels(gpu), gpu.used_bytes);
}

}  // namespace

std::string to_prometheus(const Sample& sample) {
  Metrics metrics;
  metrics.begin("exporter_info", FigureKind::gauge, "Version of the command that wrote this.");
  metrics.value("version=\"" CACHALOT_VERSION_STRING "\"", 1);
  metrics.begin("sample_time_seconds", FigureKind::gauge, "When the figures were read, in Unix time.");
  metrics.value("", sample.time);
  metrics.begin("processes", FigureKind::gauge, "Processes that publish statistics.");
  metrics.value("", sample.processes.size());
  put_devices(sample, metrics);
  put_pools(sample, metrics);
  if (sample.gpus) put_gpus(*sample.gpus, metrics);
  return metrics.take();
}

void write_textfile(const std::string& path, const std::string& text) {
  OutputFile file(path, "--prometheus-textfile");
  file.write(text);
  file.finish();
}

}  // namespace cachalot::tools::live
