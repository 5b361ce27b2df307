#include "tools/live/record_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/bytes.h"
#include "tools/json_text.h"
#include "tools/quoted.h"
#include "tools/text_layout.h"

namespace cachalot::tools::live {
namespace {

using Json = nlohmann::ordered_json;

// In UTC, as the record's own times are. A record may tell any number.
std::string time_text(double unix_time) {
  constexpr double kMost = 253402300799;  // the last second of the year 9999
  if (!(unix_time >= 0 && unix_time <= kMost)) return "an unknown time";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(unix_time)));
}

std::string duration_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  if (seconds < 2 * kMinute) return fmt::format("{:.1f} s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{:.1f} min", seconds / kMinute);
  return fmt::format("{:.1f} h", seconds / kHour);
}

std::string rate_text(double bytes_per_hour) {
  constexpr double kMost = 1e18;
  return format_bytes(static_cast<std::uint64_t>(std::clamp(bytes_per_hour, 0.0, kMost))) + " an hour";
}

std::string peak_line(std::string_view label, std::uint64_t sampled, double when, std::uint64_t own) {
  std::string text = fmt::format("{} at {}", format_bytes(sampled), time_text(when));
  if (own > sampled) text += fmt::format("; between two samples {}", format_bytes(own));
  return labelled_line(label, text);
}

std::string growth_line(const DeviceSummary& device) {
  if (!device.growth.is_certain) return labelled_line("growth", "none that is certain");
  std::string text =
      fmt::format("allocated memory grows by {}, a leak if it goes on", rate_text(device.growth.bytes_per_hour));
  for (const PoolSummary& pool : device.pools) {
    if (device.pools.size() > 1 && pool.growth.is_certain)
      text += fmt::format("; {} by {}", Printable{pool.name}, rate_text(pool.growth.bytes_per_hour));
  }
  return labelled_line("growth", text);
}

std::string failures_line(const DeviceSummary& device) {
  if (device.ooms == 0 && device.retries == 0) return "";
  return labelled_line("ran out of memory", fmt::format("{}; cached memory went back to the device for a second try {}",
                                                        times_text(device.ooms), times_text(device.retries)));
}

std::string fragmentation_line(const DeviceSummary& device) {
  if (device.fragmentation.empty()) return "";
  const FragmentationPoint& first = device.fragmentation.front();
  const FragmentationPoint& last = device.fragmentation.back();
  const FragmentationPoint& most =
      *std::ranges::max_element(device.fragmentation, {}, &FragmentationPoint::mean_unused);
  return labelled_line("unused", fmt::format("{} of what is held at first, {} at last; the most was {} at {}",
                                             percent_text(first.mean_unused), percent_text(last.mean_unused),
                                             percent_text(most.mean_unused), time_text(most.time)));
}

std::string pools_text(const DeviceSummary& device, std::size_t top) {
  if (device.pools.size() < 2 || top == 0) return "";
  std::string text = fmt::format("\n  {:>12} {:>12}  at the peak, by pool\n", "reserved", "used");
  for (std::size_t i = 0; i < std::min(top, device.pools.size()); ++i) {
    const PoolSummary& pool = device.pools[i];
    text += fmt::format("  {:>12} {:>12}  {}\n", format_bytes(pool.peak_reserved_bytes),
                        format_bytes(pool.peak_used_bytes), Printable{pool.name});
  }
  if (device.pools.size() > top) text += fmt::format("  and {} more\n", with_commas(device.pools.size() - top));
  return text;
}

std::string device_text(const DeviceSummary& device, std::size_t top, const Style& style) {
  const std::string name =
      fmt::format("process {}, device {}: {}", device.pid, device.device, Printable{device.command});
  std::string text = "\n" + style.bold(name) + "\n";
  text += labelled_line("seen",
                        fmt::format("{} in {}, from {}", format_count(device.samples, "sample"),
                                    duration_text(device.last_seen - device.first_seen), time_text(device.first_seen)));
  text += peak_line("reserved, at the most", device.peak_reserved_bytes, device.peak_reserved_time,
                    device.highest_peak_reserved_bytes);
  text += peak_line("allocated, at the most", device.peak_allocated_bytes, device.peak_allocated_time,
                    device.highest_peak_allocated_bytes);
  return text + failures_line(device) + growth_line(device) + fragmentation_line(device) + pools_text(device, top);
}

Json json_of(const Growth& growth) {
  return {
      {"bytes_per_hour", growth.bytes_per_hour}, {"confidence", growth.confidence}, {"is_certain", growth.is_certain}};
}

Json json_of(const DeviceSummary& device) {
  Json pools = Json::array();
  for (const PoolSummary& pool : device.pools) {
    pools.push_back({{"name", pool.name},
                     {"peak_reserved_bytes", pool.peak_reserved_bytes},
                     {"peak_used_bytes", pool.peak_used_bytes},
                     {"growth", json_of(pool.growth)}});
  }
  Json fragmentation = Json::array();
  for (const FragmentationPoint& point : device.fragmentation) {
    fragmentation.push_back({{"time", point.time},
                             {"internal", point.mean_internal},
                             {"external", point.mean_external},
                             {"unused", point.mean_unused}});
  }
  return {{"pid", device.pid},
          {"command", device.command},
          {"device", device.device},
          {"name", device.name},
          {"first_seen", device.first_seen},
          {"last_seen", device.last_seen},
          {"samples", device.samples},
          {"peak_reserved_bytes", device.peak_reserved_bytes},
          {"peak_reserved_time", device.peak_reserved_time},
          {"peak_allocated_bytes", device.peak_allocated_bytes},
          {"peak_allocated_time", device.peak_allocated_time},
          {"own_peak_reserved_bytes", device.highest_peak_reserved_bytes},
          {"own_peak_allocated_bytes", device.highest_peak_allocated_bytes},
          {"ooms", device.ooms},
          {"retries", device.retries},
          {"growth", json_of(device.growth)},
          {"pools", std::move(pools)},
          {"fragmentation", std::move(fragmentation)}};
}

}  // namespace

std::string to_text(const RecordSummary& summary, std::size_t top, const Style& style) {
  std::string text = labelled_line(
      "record", fmt::format("{} in {}, from {}", format_count(summary.samples, "sample"),
                            duration_text(summary.last_time - summary.first_time), time_text(summary.first_time)));
  if (summary.is_cut) text += labelled_line("cut", "its last line is not whole: the recording was interrupted");
  if (summary.devices.empty()) text += "  no process had memory\n";
  for (std::size_t i = 0; i < std::min(top, summary.devices.size()); ++i) {
    text += device_text(summary.devices[i], top, style);
  }
  if (summary.devices.size() > top) text += fmt::format("and {} more\n", with_commas(summary.devices.size() - top));
  return text;
}

std::string to_json(const std::string& file, const RecordHeader& header, const RecordSummary& summary) {
  Json devices = Json::array();
  for (const DeviceSummary& device : summary.devices) devices.push_back(json_of(device));
  return text_of({{"file", file},
                  {"record",
                   {{"started", header.started},
                    {"interval_s", header.interval_s},
                    {"samples", summary.samples},
                    {"first_time", summary.first_time},
                    {"last_time", summary.last_time},
                    {"is_cut", summary.is_cut}}},
                  {"devices", std::move(devices)}});
}

}  // namespace cachalot::tools::live
