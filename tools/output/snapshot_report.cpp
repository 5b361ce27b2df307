#include "tools/output/snapshot_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/device.h"
#include "tools/analysis/sites.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

struct Figures {
  std::size_t segments = 0;
  std::uint64_t reserved = 0;
  std::uint64_t allocated = 0;  // in live blocks
  std::uint64_t pending = 0;    // freed, but in use by other streams
  std::uint64_t requested = 0;  // of the two
  std::uint64_t free = 0;
  std::uint64_t largest_free = 0;
  std::size_t live_blocks = 0;
  std::size_t free_blocks = 0;

  void add(const HistorySegment& segment, std::span<const HistoryBlock> blocks) {
    ++segments;
    reserved += segment.bytes;
    for (const HistoryBlock& block : blocks) add(block);
  }

  double internal() const { return one_minus(requested, allocated + pending); }
  double external() const { return one_minus(largest_free, free); }

 private:
  void add(const HistoryBlock& block) {
    if (block.state == HistoryBlock::State::free) {
      ++free_blocks;
      free += block.bytes;
      largest_free = std::max(largest_free, block.bytes);
      return;
    }
    ++live_blocks;
    (block.state == HistoryBlock::State::allocated ? allocated : pending) += block.bytes;
    requested += std::min(block.requested_bytes, block.bytes);
  }

  static double one_minus(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0 : 1 - static_cast<double>(part) / static_cast<double>(whole);
  }
};

// A line of the program; all of it empty: no call stack was recorded.
struct Place {
  std::string_view file;
  std::uint32_t line = 0;
  std::string_view function;

  friend auto operator<=>(const Place&, const Place&) = default;  // NOLINT(modernize-use-nullptr): not one of ours
};

struct SiteFigures {
  Place place;
  std::uint64_t bytes = 0;
  std::size_t blocks = 0;
};

using PoolKey = std::tuple<PoolId, PoolKind, std::uint64_t>;  // the last is the stream

struct DeviceFigures {
  Figures all;
  std::map<PoolKey, Figures> pools;
  std::vector<SiteFigures> sites;  // the largest first
  std::size_t history_entries = 0;
  double history_seconds = 0;
};

Place place_of(const History& history, Sites& sites, StackId stack) {
  if (stack == 0) return {};
  const StackFrame& frame = history.stacks.frame(sites.place_of(stack));
  return {history.texts[frame.file], frame.line, history.texts[frame.function]};
}

std::vector<SiteFigures> sites_of(const History& history, Sites& sites, const DeviceHistory& device) {
  std::map<Place, SiteFigures> by_place;
  for (const HistoryBlock& block : device.blocks) {
    if (block.state == HistoryBlock::State::free) continue;
    const Place place = place_of(history, sites, block.stack);
    SiteFigures& figures = by_place[place];
    figures.place = place;
    figures.bytes += block.bytes;
    ++figures.blocks;
  }
  std::vector<SiteFigures> largest_first;
  largest_first.reserve(by_place.size());
  for (const auto& [place, figures] : by_place) largest_first.push_back(figures);
  std::ranges::stable_sort(largest_first, std::greater<>{}, &SiteFigures::bytes);
  return largest_first;
}

DeviceFigures figures_of(const History& history, Sites& sites, const DeviceHistory& device) {
  DeviceFigures figures;
  for (const HistorySegment& segment : device.segments) {
    const auto blocks = std::span(device.blocks).subspan(segment.first_block, segment.block_count);
    figures.all.add(segment, blocks);
    const PoolKind kind = segment.is_small ? PoolKind::small : PoolKind::large;
    figures.pools[{history.pools[segment.pool], kind, history.streams[segment.stream]}].add(segment, blocks);
  }
  figures.sites = sites_of(history, sites, device);
  figures.history_entries = device.events.size();
  if (!device.events.empty()) {
    figures.history_seconds =
        (static_cast<double>(device.events.back().time_us) - static_cast<double>(device.events.front().time_us)) / 1e6;
  }
  return figures;
}

// By the number of the device.
std::map<int, DeviceFigures> figures_of(const History& history) {
  std::map<int, DeviceFigures> devices;
  Sites sites(history);
  for (const DeviceHistory& device : history.devices) {
    devices[device.device] = figures_of(history, sites, device);
  }
  return devices;
}

// --- text -------------------------------------------------------------------------------------------------------------

std::string place_text(const Place& place) {
  if (place.file.empty() && place.function.empty()) return "(no call stack was recorded)";
  return fmt::format("{}:{} in {}", Printable{place.file}, place.line, Printable{place.function});
}

std::string pool_name(PoolId id, PoolKind kind) {
  const char* const size = kind == PoolKind::small ? "small" : "large";
  return id == PoolId{} ? size : fmt::format("{} of pool ({}, {})", size, id.first, id.second);
}

std::string device_text(const DeviceFigures& device) {
  const Figures& all = device.all;
  std::string text;
  text += labelled_line("reserved",
                        fmt::format("{} in {}", format_bytes(all.reserved), format_count(all.segments, "segment")));
  text += labelled_line("allocated", fmt::format("{} in {}", format_bytes(all.allocated + all.pending),
                                                 format_count(all.live_blocks, "block")));
  if (all.pending > 0)
    text += labelled_line("freed, still in use", format_bytes(all.pending) + " of it, by other streams");
  text += labelled_line("requested", format_bytes(all.requested));
  text += labelled_line("free", fmt::format("{} in {}, the largest {}", format_bytes(all.free),
                                            format_count(all.free_blocks, "block"), format_bytes(all.largest_free)));
  text += labelled_line("internal fragmentation", fmt::format("{:.2f} %", 100 * all.internal()));
  text += labelled_line("external fragmentation", fmt::format("{:.2f} %", 100 * all.external()));
  text += labelled_line("history", device.history_entries == 0
                                       ? "none"
                                       : format_count(device.history_entries, "event") +
                                             (device.history_seconds > 0  // old snapshots have no times
                                                  ? fmt::format(" over {:.3f} s", device.history_seconds)
                                                  : ""));
  return text;
}

std::string pools_text(const DeviceFigures& device) {
  std::string text = fmt::format("\n  {:<24} {:>18} {:>8} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "pool", "stream",
                                 "segments", "reserved", "allocated", "requested", "free", "largest free");
  for (const auto& [key, figures] : device.pools) {
    const auto& [id, kind, stream] = key;
    text +=
        fmt::format("  {:<24} {:>#18x} {:>8} {:>12} {:>12} {:>12} {:>12} {:>12}\n", pool_name(id, kind), stream,
                    figures.segments, format_bytes(figures.reserved), format_bytes(figures.allocated + figures.pending),
                    format_bytes(figures.requested), format_bytes(figures.free), format_bytes(figures.largest_free));
  }
  return text;
}

std::string sites_text(const DeviceFigures& device, std::size_t top) {
  if (device.sites.empty() || top == 0) return "";
  std::string text = fmt::format("\n  {:>12} {:>8}  lines of the program, by the live memory that they allocated\n",
                                 "bytes", "blocks");
  for (const SiteFigures& site : first_of(device.sites, top))
    text += fmt::format("  {:>12} {:>8}  {}\n", format_bytes(site.bytes), site.blocks, place_text(site.place));
  if (device.sites.size() > top) text += fmt::format("  and {} more lines\n", device.sites.size() - top);
  return text;
}

// --- JSON -------------------------------------------------------------------------------------------------------------

using Json = nlohmann::ordered_json;

Json json_of(const Figures& figures) {
  return {{"segments", figures.segments},
          {"reserved_bytes", figures.reserved},
          {"allocated_bytes", figures.allocated},
          {"pending_free_bytes", figures.pending},
          {"requested_bytes", figures.requested},
          {"live_blocks", figures.live_blocks},
          {"free_bytes", figures.free},
          {"free_blocks", figures.free_blocks},
          {"largest_free_bytes", figures.largest_free},
          {"internal_fragmentation", figures.internal()},
          {"external_fragmentation", figures.external()}};
}

Json json_of(int index, const DeviceFigures& device, std::size_t top) {
  Json json = {{"device", index}};
  json.update(json_of(device.all));
  json["history_entries"] = device.history_entries;
  json["history_seconds"] = device.history_seconds;
  json["pools"] = Json::array();
  for (const auto& [key, figures] : device.pools) {
    const auto& [id, kind, stream] = key;
    Json pool = {
        {"pool_id", {id.first, id.second}}, {"kind", kind == PoolKind::small ? "small" : "large"}, {"stream", stream}};
    pool.update(json_of(figures));
    json["pools"].push_back(std::move(pool));
  }
  json["site_count"] = device.sites.size();
  json["sites"] = Json::array();
  for (const SiteFigures& site : first_of(device.sites, top))
    json["sites"].push_back({{"file", site.place.file},
                             {"line", site.place.line},
                             {"function", site.place.function},
                             {"bytes", site.bytes},
                             {"blocks", site.blocks}});
  return json;
}

}  // namespace

std::string to_text(const History& history, std::size_t top, const Style& style) {
  const std::map<int, DeviceFigures> devices = figures_of(history);
  std::string text = style.bold(printable(history.path)) + "\n";
  if (devices.empty()) {
    text += history.unknown_actions == 0 ? "  no memory is held, and there is no history\n" : "  no memory is held\n";
  }
  for (const auto& [index, device] : devices) {
    if (devices.size() > 1 || index != 0) text += fmt::format("device {}\n", index);
    text += device_text(device);
    if (device.all.segments > 0) text += pools_text(device);
    text += sites_text(device, top);
  }
  if (history.unknown_actions > 0)
    text += labelled_line("left out of the history", unknown_actions_text(history.unknown_actions));
  return text;
}

std::string to_json(const History& history, std::size_t top) {
  Json json = {{"snapshot", history.path},
               {"settings", history.settings},
               {"unknown_actions", history.unknown_actions},
               {"devices", Json::array()}};
  for (const auto& [index, device] : figures_of(history)) json["devices"].push_back(json_of(index, device, top));
  return text_of(json);
}

}  // namespace cachalot::tools
