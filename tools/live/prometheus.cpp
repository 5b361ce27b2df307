#include "tools/live/prometheus.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "cachalot/version.h"
#include "tools/json_text.h"
#include "tools/live/figures.h"
#include "tools/output_file.h"

namespace cachalot::tools::live {
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
