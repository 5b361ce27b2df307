#include "tools/live/top_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <string_view>

#include "base/bytes.h"
#include "tools/quoted.h"

namespace cachalot::tools::live {
namespace {

constexpr std::size_t kShownOfACommand = 80;
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

// What is most asked for fits 80 columns.
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

// Whether a process that NVML lists on the GPU publishes statistics.
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
  constexpr auto kOrders = 4;
  return static_cast<TopView::Order>((static_cast<int>(order) + 1) % kOrders);
}

std::string name_of(TopView::Order order) {
  switch (order) {
    case TopView::Order::reserved:
      return "reserved memory";
    case TopView::Order::allocated:
      return "allocated memory";
    case TopView::Order::rate:
      return "allocations per s";
    case TopView::Order::pid:
      return "process id";
  }
  return "";
}

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

}  // namespace cachalot::tools::live
