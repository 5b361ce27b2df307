#include "tools/live/sample_formats.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "cachalot/version.h"
#include "tools/base/output_file.h"
#include "tools/base/quoted.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools::live {
namespace {

constexpr std::size_t kShownOfACommand = 80;
constexpr std::array kOrders = {"reserved memory", "allocated memory", "allocations per s", "process id"};
constexpr double kOldSeconds = 5;  // of figures that are not refreshed

// In ASCII, and not too long.
std::string shown(std::string_view text, std::size_t most = kShownOfACommand) {
  std::string result;
  print_escaped(std::back_inserter(result), text, most, [](unsigned char byte) { return byte >= 0x20 && byte < 0x7f; });
  return result;
}

std::string bytes(std::uint64_t count) { return format_bytes(count); }
std::uint64_t whole(double rate) {
  return rate >= 0 && rate < 1e18 ? static_cast<std::uint64_t>(std::llround(rate)) : 0;
}

struct DeviceRow {
  const ProcessSample* process;
  const DeviceSample* device;
};

std::vector<DeviceRow> rows_of(const Sample& sample, TopView::Order order) {
  std::vector<DeviceRow> rows;
  for (const ProcessSample& process : sample.processes) {
    for (const DeviceSample& device : process.devices) {
      if (device.is_used()) rows.push_back({&process, &device});
    }
  }
  const auto sort = [&](auto figure_of) { std::ranges::stable_sort(rows, std::greater{}, figure_of); };
  if (order == TopView::Order::reserved) sort([](const DeviceRow& row) { return row.device->reserved_bytes; });
  if (order == TopView::Order::allocated) sort([](const DeviceRow& row) { return row.device->allocated_bytes; });
  if (order == TopView::Order::rate) {
    sort([](const DeviceRow& row) { return row.device->rates ? row.device->rates->allocations : -1.0; });
  }
  return rows;  // processes come by pid
}

// The figures wanted most fit into 80 columns.
constexpr std::string_view kColumns = "{:>8} {:>3} {:>10} {:>10} {:>10} {:>7} {:>8} {:>9} {:>7} {:>11} {:>11}  {}\n";

std::string head_line() {
  return fmt::format(fmt::runtime(kColumns), "pid", "dev", "reserved", "allocated", "peak", "unused", "external",
                     "allocs/s", "calls/s", "bytes/s", "asleep", "command");
}

std::string device_line(const DeviceRow& row) {
  const DeviceSample& device = *row.device;
  const auto rate = [&](auto text_of) { return device.rates ? text_of(*device.rates) : std::string("-"); };
  return fmt::format(fmt::runtime(kColumns), row.process->pid, device.index, bytes(device.reserved_bytes),
                     bytes(device.allocated_bytes), bytes(device.peak_reserved_bytes),
                     percent_text(device.unused_share()), percent_text(device.external_fragmentation()),
                     rate([](const Rates& rates) { return with_commas(whole(rates.allocations)); }),
                     rate([](const Rates& rates) { return with_commas(whole(rates.driver_calls)); }),
                     rate([](const Rates& rates) { return bytes(whole(rates.allocated_bytes)); }),
                     device.asleep_bytes == 0 ? "-" : bytes(device.asleep_bytes), shown(row.process->command));
}

// Under the columns of reserved and allocated memory.
std::string pool_line(const PoolSample& pool) {
  constexpr std::size_t kShownOfAName = 40;
  const std::string name = shown(pool.name(), kShownOfAName);
  if (pool.is_asleep) return fmt::format("{:>23} {:>10}  {}, {} asleep\n", "-", "-", name, bytes(pool.asleep_bytes));
  return fmt::format("{:>23} {:>10}  {}, {} free in {} blocks\n", bytes(pool.reserved_bytes), bytes(pool.used_bytes),
                     name, bytes(pool.free_bytes), with_commas(pool.free_blocks));
}

// The default pool alone says what the device's line says.
std::string pool_lines(const DeviceSample& device, const TopView& view) {
  std::string lines;
  for (const PoolSample& pool : device.pools) {
    const bool is_shown = pool.tag.empty() ? view.shows_pools && device.pools.size() > 1 : view.shows_tags;
    if (is_shown && (pool.reserved_bytes != 0 || pool.is_asleep)) lines += pool_line(pool);
  }
  if (view.shows_pools && device.pool_count > device.pools.size()) {
    lines += fmt::format("{:>34}  {} further pools\n", "", with_commas(device.pool_count - device.pools.size()));
  }
  return lines;
}

std::string event_line(const DeviceSample& device) {
  std::string events;
  const auto add = [&](std::uint64_t count, std::string_view what) {
    if (count != 0) events += fmt::format("{}{} {}", events.empty() ? "" : ", ", with_commas(count), what);
  };
  add(device.ooms + device.oom_rejections, "out of memory");
  add(device.retries, "retries after the cache went back");
  if (device.limit_bytes) events += fmt::format("{}limit {}", events.empty() ? "" : ", ", bytes(*device.limit_bytes));
  return events;
}

// Returns the sample of a process that NVML lists on the GPU; null if it does not publish statistics.
const ProcessSample* publisher(const Sample& sample, std::uint64_t pid) {
  const auto found = std::ranges::find(sample.processes, pid, &ProcessSample::pid);
  return found == sample.processes.end() ? nullptr : &*found;
}

std::string gpu_lines(const Sample& sample, const GpuSample& gpu, const Style& style) {
  std::string lines = style.bold(fmt::format("GPU {}  {}", gpu.index, shown(gpu.name))) +
                      fmt::format("  {} of {} in use, {} processes\n", bytes(gpu.used_bytes), bytes(gpu.total_bytes),
                                  gpu.processes.size());
  for (const GpuProcess& each : gpu.processes) {
    const ProcessSample* const known = publisher(sample, each.pid);
    lines += fmt::format("{:>10} {:>16}  {}\n", each.pid, each.used_bytes ? bytes(*each.used_bytes) : "unknown",
                         known == nullptr ? "publishes no statistics" : shown(known->command));
  }
  return lines;
}

std::string head_of(const Sample& sample, const TopView& view, double interval_s, const Style& style) {
  const auto time = static_cast<std::time_t>(std::clamp(sample.time, 0.0, 1e11));
  std::tm local{};
  localtime_r(&time, &local);
  const std::size_t count = sample.processes.size();
  return style.bold("cachalot top") + fmt::format("  {:%Y-%m-%d %H:%M:%S}  {} process{}, by {}, every {} s\n", local,
                                                  count, count == 1 ? "" : "es", name_of(view.order), interval_s);
}

}  // namespace

TopView::Order next_of(TopView::Order order) {
  return static_cast<TopView::Order>((static_cast<std::size_t>(order) + 1) % kOrders.size());
}

std::string name_of(TopView::Order order) { return kOrders[static_cast<std::size_t>(order)]; }

std::string to_text(const Sample& sample, const TopView& view, double interval_s, const std::vector<std::string>& notes,
                    const Style& style) {
  std::string text = head_of(sample, view, interval_s, style);
  if (view.shows_gpus && sample.gpus) {
    for (const GpuSample& gpu : *sample.gpus) text += gpu_lines(sample, gpu, style);
  }
  const std::vector<DeviceRow> rows = rows_of(sample, view.order);
  if (!rows.empty()) text += style.bold(head_line());
  for (const DeviceRow& row : rows) {
    const bool is_old = sample.time - row.process->refreshed > kOldSeconds;
    text += is_old ? style.faint(device_line(row)) : device_line(row);
    if (const std::string events = event_line(*row.device); !events.empty())
      text += fmt::format("{:>34}  {}\n", "", events);
    if (is_old) text += fmt::format("{:>34}  not refreshed for {:.0f} s\n", "", sample.time - row.process->refreshed);
    text += pool_lines(*row.device, view);
  }
  if (sample.processes.empty()) {
    text += "No process publishes statistics. Start programs with CACHALOT_PUBLISH=1.\n";
  } else if (rows.empty()) {
    text += "No process has used a device so far.\n";
  }
  for (const std::string& note : notes) text += style.faint(note) + "\n";
  return text;
}

std::string cut_to_screen(const std::string& text, std::size_t rows, std::size_t columns) {
  std::string result;
  std::size_t row = 0;
  std::size_t column = 0;
  for (std::size_t i = 0; i < text.size() && row < rows; ++i) {
    if (text[i] == '\033') {  // as Style writes it: to the letter m
      const std::size_t end = std::min(text.find('m', i), text.size() - 1);
      result += text.substr(i, end - i + 1);
      i = end;
    } else if (text[i] == '\n') {
      result += '\n';
      ++row;
      column = 0;
    } else if (column++ < columns) {
      result += text[i];
    }
  }
  return result;
}

namespace {

using Json = nlohmann::ordered_json;

// The figures of a sample by name: JSON and Prometheus take them from these tables.
template <typename Owner>
struct Figure {
  std::string_view key;  // of JSON
  std::uint64_t Owner::*member;
  std::string_view metric;  // of Prometheus, without "cachalot_"; "_total" ends those that only grow: counters
  std::string_view help;
};

constexpr Figure<DeviceSample> kDeviceFigures[] = {
    {"total_bytes", &DeviceSample::total_bytes, "device_total_bytes", "Memory of the device."},
    {"reserved_bytes", &DeviceSample::reserved_bytes, "reserved_bytes", "Memory held from the device."},
    {"allocated_bytes", &DeviceSample::allocated_bytes, "allocated_bytes", "Memory of allocated blocks."},
    {"requested_bytes", &DeviceSample::requested_bytes, "requested_bytes", "Memory that the program asked for."},
    {"active_bytes", &DeviceSample::active_bytes, "active_bytes",
     "Memory of blocks that are allocated or wait for other streams."},
    {"peak_reserved_bytes", &DeviceSample::peak_reserved_bytes, "peak_reserved_bytes",
     "Largest reserved memory since the program reset it."},
    {"peak_allocated_bytes", &DeviceSample::peak_allocated_bytes, "peak_allocated_bytes",
     "Largest allocated memory since the program reset it."},
    {"peak_requested_bytes", &DeviceSample::peak_requested_bytes, "peak_requested_bytes",
     "Largest requested memory since the program reset it."},
    {"peak_active_bytes", &DeviceSample::peak_active_bytes, "peak_active_bytes",
     "Largest active memory since the program reset it."},
    {"free_bytes", &DeviceSample::free_bytes, "free_bytes", "Cached memory in free blocks."},
    {"free_blocks", &DeviceSample::free_blocks, "free_blocks", "Number of free blocks."},
    {"largest_free_bytes", &DeviceSample::largest_free_bytes, "largest_free_bytes", "Size of the largest free block."},
    {"asleep_bytes", &DeviceSample::asleep_bytes, "asleep_bytes", "Memory given back until it is restored."},
    {"blocks", &DeviceSample::blocks, "blocks", "Number of allocated blocks."},
    {"segments", &DeviceSample::segments, "segments", "Number of segments held from the device."},
    {"allocations", &DeviceSample::allocations, "allocations_total", "Allocations so far."},
    {"frees", &DeviceSample::frees, "frees_total", "Frees so far."},
    {"allocated_sum_bytes", &DeviceSample::allocated_sum_bytes, "allocated_bytes_total",
     "Bytes of all blocks allocated so far."},
    {"freed_sum_bytes", &DeviceSample::freed_sum_bytes, "freed_bytes_total", "Bytes of all blocks freed so far."},
    {"device_allocations", &DeviceSample::device_allocations, "device_allocations_total",
     "Driver calls that got memory."},
    {"device_frees", &DeviceSample::device_frees, "device_frees_total", "Driver calls that gave memory back."},
    {"retries", &DeviceSample::retries, "retries_total", "Times the device was asked again after the cache went back."},
    {"ooms", &DeviceSample::ooms, "ooms_total", "Requests that failed for want of memory."},
    {"oom_rejections", &DeviceSample::oom_rejections, "oom_rejections_total",
     "Requests that throw_on_cudamalloc_oom refused."},
    {"stream_waits", &DeviceSample::stream_waits, "stream_waits_total", "Times all pending events were waited for."},
};

constexpr Figure<PoolSample> kPoolFigures[] = {
    {"reserved_bytes", &PoolSample::reserved_bytes, "pool_reserved_bytes",
     "Memory that the pool holds from the device."},
    {"used_bytes", &PoolSample::used_bytes, "pool_used_bytes", "Reserved memory of the pool that is in no free block."},
    {"free_bytes", &PoolSample::free_bytes, "pool_free_bytes", "Cached memory in free blocks of the pool."},
    {"free_blocks", &PoolSample::free_blocks, "pool_free_blocks", "Number of free blocks of the pool."},
    {"largest_free_bytes", &PoolSample::largest_free_bytes, "pool_largest_free_bytes",
     "Size of the largest free block of the pool."},
    {"asleep_bytes", &PoolSample::asleep_bytes, "pool_asleep_bytes",
     "Memory of the pool given back until it is restored."},
};

// Six digits behind the point are enough for a time and a ratio, and keep a line short.
double rounded(double number) { return std::round(number * 1e6) / 1e6; }

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

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
  json["limit_bytes"] = or_null(device.limit_bytes);
  json["soft_limit_bytes"] = or_null(device.soft_limit_bytes);
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
    json["processes"].push_back({{"pid", each.pid}, {"used_bytes", or_null(each.used_bytes)}});
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

// A label's value is UTF-8 with three escapes. Bytes that are not UTF-8 become U+FFFD, and control characters become '?'.
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
  void begin(std::string_view name, std::string_view help) {
    name_ = name;
    head_ = fmt::format("# HELP cachalot_{0} {1}\n# TYPE cachalot_{0} {2}\n", name, help,
                        name.ends_with("_total") ? "counter" : "gauge");
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
    metrics.begin(figure.metric, figure.help);
    put([&](const DeviceSample& device) { return std::optional(device.*figure.member); });
  }
  metrics.begin("limit_bytes", "Lowest limit of reserved memory, where there is one.");
  put([](const DeviceSample& device) { return device.limit_bytes; });
  metrics.begin("internal_fragmentation_ratio", "1 - requested / active memory.");
  put([](const DeviceSample& device) { return std::optional(device.internal_fragmentation()); });
  metrics.begin("external_fragmentation_ratio", "1 - largest free block / free memory.");
  put([](const DeviceSample& device) { return std::optional(device.external_fragmentation()); });
}

void put_pools(const Sample& sample, Metrics& metrics) {
  const auto put = [&](auto value_of) {
    for_each_device(sample, [&](const ProcessSample& process, const DeviceSample& device) {
      for (const PoolSample& pool : device.pools) metrics.value(pool_labels(process, device, pool), value_of(pool));
    });
  };
  for (const Figure<PoolSample>& figure : kPoolFigures) {
    metrics.begin(figure.metric, figure.help);
    put([&](const PoolSample& pool) { return pool.*figure.member; });
  }
  metrics.begin("pool_asleep", "1 while the pool is asleep.");
  put([](const PoolSample& pool) { return pool.is_asleep ? 1 : 0; });
}

std::string gpu_labels(const GpuSample& gpu) {
  return fmt::format("gpu=\"{}\",name=\"{}\",uuid=\"{}\"", gpu.index, escaped(gpu.name), escaped(gpu.uuid));
}

void put_gpus(const std::vector<GpuSample>& gpus, Metrics& metrics) {
  metrics.begin("gpu_total_bytes", "Memory of the GPU, as NVML has it.");
  for (const GpuSample& gpu : gpus) metrics.value(gpu_labels(gpu), gpu.total_bytes);
  metrics.begin("gpu_used_bytes", "Memory that all processes use, as NVML has it.");
  for (const GpuSample& gpu : gpus) metrics.value(gpu_labels(gpu), gpu.used_bytes);
}

}  // namespace

std::string to_prometheus(const Sample& sample) {
  Metrics metrics;
  metrics.begin("exporter_info", "Version of the command that wrote this.");
  metrics.value("version=\"" CACHALOT_VERSION_STRING "\"", 1);
  metrics.begin("sample_time_seconds", "When the figures were read, in Unix time.");
  metrics.value("", sample.time);
  metrics.begin("processes", "Processes that publish statistics.");
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
