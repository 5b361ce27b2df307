#include "tools/analysis/difference_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tools/json_text.h"
#include "tools/quoted.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string signed_bytes(std::int64_t bytes) {
  const std::string size = format_bytes(static_cast<std::size_t>(std::abs(bytes)));
  return bytes == 0 ? size : (bytes > 0 ? "+" : "-") + size;
}

// The rows that changed most, in their order, and the sum of the others.
struct ShownRows {
  std::vector<const DifferenceRow*> rows;
  std::size_t other_count = 0;
  Pair other_bytes;
};

ShownRows shown_rows(const DifferenceList& list, std::size_t top) {
  std::vector<std::size_t> by_change(list.rows.size());
  for (std::size_t i = 0; i < by_change.size(); ++i) by_change[i] = i;
  const auto rank = [&](std::size_t i) {
    const Pair& bytes = list.rows[i].bytes;
    return std::pair(std::abs(bytes.growth()), std::max(bytes.a, bytes.b));
  };
  std::ranges::stable_sort(by_change, std::ranges::greater{}, rank);
  ShownRows shown;
  for (std::size_t i = top; i < by_change.size(); ++i) {
    const Pair& bytes = list.rows[by_change[i]].bytes;
    ++shown.other_count;
    shown.other_bytes = {shown.other_bytes.a + bytes.a, shown.other_bytes.b + bytes.b};
  }
  by_change.resize(std::min(top, by_change.size()));
  std::ranges::sort(by_change);
  for (const std::size_t i : by_change) shown.rows.push_back(&list.rows[i]);
  return shown;
}

// ---- text

std::string figures_text(const Pair& bytes) {
  return fmt::format("{:>14} {:>14} {:>14}", signed_bytes(bytes.growth()), format_bytes(bytes.a),
                     format_bytes(bytes.b));
}

std::string row_text(const DifferenceRow& row) {
  std::string note;
  if (row.count.a == 0) note = "  (new)";
  if (row.count.b == 0) note = "  (gone)";
  if (!row.was.empty()) note = fmt::format("  (A: {})", Printable{row.was});
  return fmt::format("{}  {}{}\n", figures_text(row.bytes), Printable{row.name}, note);
}

std::string list_text(const DifferenceList& list, std::size_t top, const Style& style) {
  const ShownRows shown = shown_rows(list, top);
  std::string text = style.bold(fmt::format("{:>14} {:>14} {:>14}  {}", "growth", "A", "B", list.name)) + "\n";
  for (const DifferenceRow* row : shown.rows) text += row_text(*row);
  if (shown.other_count > 0) {
    text += style.faint(fmt::format("{}  ({} more)", figures_text(shown.other_bytes), with_commas(shown.other_count)));
    text += "\n";
  }
  return text + "\n";
}

// A list with one row says nothing that the whole does not.
bool is_telling(const DifferenceList& list) { return list.rows.size() > 1 || list.name == "category"; }

// Stages count from 1 for people.
std::string numbers_text(const DifferencePart& part) {
  if (part.end - part.begin < 2) return fmt::format("number {:.0f}", part.begin + 1);
  return fmt::format("numbers {:.0f} to {:.0f}", part.begin + 1, part.end);
}

std::string time_text(const DeviceDifference& device, const Style& style) {
  const bool by_events = device.aligned_by == "events";
  const std::string title = by_events ? "peak in a part of the events" : "peak in " + device.aligned_by;
  std::string text =
      style.bold(fmt::format("{:>14} {:>14} {:>14}  {}", "growth", "A", "B", fmt::to_string(Printable{title}))) + "\n";
  for (const DifferencePart& part : device.parts) {
    const std::string when =
        by_events ? fmt::format("{:.0f} to {:.0f} %", 100 * part.begin, 100 * part.end) : numbers_text(part);
    text += fmt::format("{}  {}\n", figures_text(part.peak_bytes), when);
  }
  return text;
}

std::string moment_text(char side, const std::string& path, std::optional<int> device, const DifferenceMoment& moment) {
  if (!device) return fmt::format("{}  {}: lacks the device\n", side, Printable{path});
  const std::string reserved =
      moment.reserved_bytes == 0 ? "" : fmt::format(", reserved {}", format_bytes(moment.reserved_bytes));
  return fmt::format("{}  {}: device {}, after event {} of {}\n   requested {}, allocated {}{}\n", side,
                     Printable{path}, *device, with_commas(moment.event), with_commas(moment.events),
                     format_bytes(moment.requested_bytes), format_bytes(moment.allocated_bytes), reserved);
}

std::string device_text(const Difference& difference, const DeviceDifference& device, std::size_t top,
                        const Style& style) {
  std::string text = moment_text('A', difference.paths[0], device.device[0], device.moment[0]) +
                     moment_text('B', difference.paths[1], device.device[1], device.moment[1]);
  text += style.bold(fmt::format("   growth of the requested memory: {}", signed_bytes(device.growth()))) + "\n\n";
  for (const DifferenceList& list : device.lists) {
    if (is_telling(list)) text += list_text(list, top, style);
  }
  return text + time_text(device, style);
}

// ---- JSON

Json json_of(const DifferenceMoment& moment) {
  return {{"event", moment.event},
          {"events", moment.events},
          {"requested_bytes", moment.requested_bytes},
          {"allocated_bytes", moment.allocated_bytes},
          {"reserved_bytes", moment.reserved_bytes}};
}

Json json_of(const DifferenceRow& row) {
  Json was = nullptr;
  if (!row.was.empty()) was = row.was;
  return {{"name", row.name},
          {"was", was},
          {"change", row.change()},
          {"a_bytes", row.bytes.a},
          {"b_bytes", row.bytes.b},
          {"growth_bytes", row.bytes.growth()},
          {"a_allocations", row.count.a},
          {"b_allocations", row.count.b}};
}

Json json_of(const DifferenceList& list, std::size_t top) {
  const ShownRows shown = shown_rows(list, top);
  Json rows = Json::array();
  for (const DifferenceRow* row : shown.rows) rows.push_back(json_of(*row));
  return {{"rows", std::move(rows)},
          {"others",
           {{"rows", shown.other_count},
            {"a_bytes", shown.other_bytes.a},
            {"b_bytes", shown.other_bytes.b},
            {"growth_bytes", shown.other_bytes.growth()}}}};
}

// "category": "by_category".
Json json_of(const DeviceDifference& device, std::size_t top) {
  Json json;
  for (std::size_t side = 0; side < device.device.size(); ++side) {
    const char* const name = side == 0 ? "device_a" : "device_b";
    json[name] = nullptr;
    if (device.device[side]) json[name] = *device.device[side];
  }
  json["a"] = json_of(device.moment[0]);
  json["b"] = json_of(device.moment[1]);
  json["growth_bytes"] = device.growth();
  for (const DifferenceList& list : device.lists) json["by_" + list.name] = json_of(list, top);
  json["aligned_by"] = device.aligned_by;
  json["parts"] = Json::array();
  for (const DifferencePart& part : device.parts) {
    json["parts"].push_back({{"begin", part.begin},
                             {"end", part.end},
                             {"a_peak_bytes", part.peak_bytes.a},
                             {"b_peak_bytes", part.peak_bytes.b},
                             {"growth_bytes", part.peak_bytes.growth()}});
  }
  return json;
}

}  // namespace

std::string to_text(const Difference& difference, std::size_t top, const Style& style) {
  std::string text;
  for (const DeviceDifference& device : difference.devices) {
    text += (text.empty() ? "" : "\n") + device_text(difference, device, top, style);
  }
  return text;
}

std::string to_json(const Difference& difference, std::size_t top) {
  std::int64_t growth = 0;
  Json devices = Json::array();
  for (const DeviceDifference& device : difference.devices) {
    growth += device.growth();
    devices.push_back(json_of(device, top));
  }
  return text_of(Json{{"a", difference.paths[0]},
                      {"b", difference.paths[1]},
                      {"at", difference.at},
                      {"growth_bytes", growth},
                      {"devices", std::move(devices)}});
}

}  // namespace cachalot::tools
