#include "tools/output/snapshot_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/device.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

// Returns the bytes that a live block was asked for; a snapshot may say more than the block has.
std::uint64_t requested_of(const HistoryBlock& block) { return std::min(block.requested_bytes, block.bytes); }

struct Figures {
  std::size_t segments = 0;
  std::uint64_t reserved = 0;
  std::uint64_t allocated = 0;  // in live blocks
  std::uint64_t pending = 0;    // freed, but in use by other streams
  std::uint64_t requested = 0;  // of the live blocks
  std::uint64_t free = 0;
  std::uint64_t largest_free = 0;
  std::size_t live_blocks = 0;
  std::size_t free_blocks = 0;

  void add(const HistorySegment& segment, std::span<const HistoryBlock> blocks) {
    ++segments;
    reserved += segment.bytes;
    for (const HistoryBlock& block : blocks) add(block);
  }

  double internal() const { return one_minus(requested, allocated); }
  double external() const { return one_minus(largest_free, free); }

 private:
  void add(const HistoryBlock& block) {
    if (block.state == HistoryBlock::State::free) {
      ++free_blocks;
      free += block.bytes;
      largest_free = std::max(largest_free, block.bytes);
      return;
    }
    if (block.state == HistoryBlock::State::pending_free) {
      pending += block.bytes;
      return;
    }
    ++live_blocks;
    allocated += block.bytes;
    requested += requested_of(block);
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
};

struct SiteFigures {
  Place place;       // of the first block
  std::string name;  // "model.py:42 in forward"
  std::uint64_t bytes = 0;
  std::size_t blocks = 0;
};

using PoolKey = std::tuple<PoolId, PoolKind, std::uint64_t>;  // the last is the stream

// The place of a live block; one without a call stack has no name.
SiteFigures site_of(const History& history, Sites& sites, StackId stack) {
  if (stack == 0) return {};
  const FrameId id = sites.place_of(stack);
  const StackFrame& frame = history.stacks.frame(id);
  return {.place = {history.texts[frame.file], frame.line, history.texts[frame.function]}, .name = sites.text_of(id)};
}

// The largest first.
std::vector<SiteFigures> sites_of(const History& history, Sites& sites, const DeviceHistory& device) {
  std::map<std::string, SiteFigures> by_name;
  for (const HistoryBlock& block : device.blocks) {
    if (block.state != HistoryBlock::State::allocated) continue;
    SiteFigures site = site_of(history, sites, block.stack);
    SiteFigures& figures = by_name.try_emplace(site.name, site).first->second;
    figures.bytes += requested_of(block);
    ++figures.blocks;
  }
  std::vector<SiteFigures> largest_first;
  largest_first.reserve(by_name.size());
  for (auto& [name, figures] : by_name) largest_first.push_back(std::move(figures));
  std::ranges::stable_sort(largest_first, std::greater<>{}, &SiteFigures::bytes);
  return largest_first;
}

std::string name_text(const SiteFigures& site) {
  return site.name.empty() ? "(no call stack was recorded)" : printable(site.name);
}

// Adds the peak, for which memory must suffice; the other figures are of the end.
void add_peak(Section& section, const std::optional<Moment>& moment, std::size_t events) {
  if (!moment) {
    section.add_value("peak", nullptr);
    return;
  }
  const Held& held = moment->held;
  const std::uint64_t cached = held.reserved - std::min(held.reserved, held.allocated);
  const std::string reserved =
      held.reserved == 0 ? ""
                         : fmt::format(" of {} reserved, {} cached", format_bytes(held.reserved),
                                       percent_text(static_cast<double>(cached) / static_cast<double>(held.reserved)));
  Section peak = object_of("peak");
  peak.add_value("event", moment->event).add_value("reserved_bytes", held.reserved);
  peak.add_bytes(
      "allocated_bytes", "peak", held.allocated,
      fmt::format(" allocated{}, at event {} of {}", reserved, with_commas(moment->event), with_commas(events)));
  peak.add_line("", "`cachalot explain` says what held it, and what helps");
  section.add(std::move(peak)).add(Note{.text = "  at the end", .is_wrapped = false});
}

std::string pool_name(PoolId id, PoolKind kind) {
  const char* const size = kind == PoolKind::small ? "small" : "large";
  return id == PoolId{} ? size : fmt::format("{} of pool ({}, {})", size, id.first, id.second);
}

// Old snapshots have no times.
void add_history(Section& section, const std::vector<HistoryEvent>& events) {
  const double seconds =
      events.empty() ? 0
                     : (static_cast<double>(events.back().time_us) - static_cast<double>(events.front().time_us)) / 1e6;
  section.add_value("history_entries", events.size()).add_value("history_seconds", seconds);
  section.add_line("history", events.empty() ? "none"
                              : seconds <= 0
                                  ? format_count(events.size(), "event")
                                  : fmt::format("{} over {:.3f} s", format_count(events.size(), "event"), seconds));
}

void add_figures(Section& section, const Figures& all, bool has_history) {
  section.add_value("segments", all.segments).add_value("pending_free_bytes", all.pending);
  section.add_value("live_blocks", all.live_blocks).add_value("free_blocks", all.free_blocks);
  section.add_value("largest_free_bytes", all.largest_free);
  section.add_bytes("reserved_bytes", "reserved", all.reserved, " in " + format_count(all.segments, "segment"));
  section.add_line("allocated",
                   fmt::format("{} in {}", format_bytes(all.allocated), format_count(all.live_blocks, "block")));
  section.add_value("allocated_bytes", all.allocated);
  if (all.pending > 0) section.add_line("freed, still in use", format_bytes(all.pending) + " more, by other streams");
  section.add_bytes("requested_bytes", "requested", all.requested);
  section.add_bytes(
      "free_bytes", "free", all.free,
      fmt::format(" in {}, the largest {}", format_count(all.free_blocks, "block"), format_bytes(all.largest_free)));
  section.add(Figure{.key = "internal_fragmentation",
                     .label = "internal fragmentation",
                     .cell = {all.internal(), fmt::format("{:.2f} %", 100 * all.internal())}});
  section.add(Figure{.key = "external_fragmentation",
                     .label = "external fragmentation",
                     .cell = {all.external(), fmt::format("{:.2f} % of the free memory{}", 100 * all.external(),
                                                          has_history ? ", at the end" : "")}});
}

Table pools_table(const std::map<PoolKey, Figures>& pools) {
  const auto bytes = [](const char* key, const char* title) {
    return Column{.key = key, .title = title, .unit = Unit::bytes, .width = 12};
  };
  Table table{.key = "pools",
              .title = "Memory pools at the end",
              .columns = {{.title = "pool", .width = 24, .is_left = true, .views = kForPeople},
                          {.key = "stream", .title = "stream", .width = 18},
                          {.key = "segments", .title = "segments", .unit = Unit::count, .width = 8},
                          bytes("reserved_bytes", "reserved"),
                          {.title = "in use", .unit = Unit::bytes, .width = 12, .views = kForPeople},
                          bytes("requested_bytes", "requested"),
                          bytes("free_bytes", "free"),
                          bytes("largest_free_bytes", "largest free"),
                          hidden_column("pool_id"),
                          hidden_column("kind"),
                          hidden_column("allocated_bytes"),
                          hidden_column("pending_free_bytes"),
                          hidden_column("live_blocks"),
                          hidden_column("free_blocks"),
                          hidden_column("internal_fragmentation"),
                          hidden_column("external_fragmentation")},
              .is_apart = true};
  for (const auto& [key, one] : pools) {
    const auto& [id, kind, stream] = key;
    table.rows.push_back({pool_name(id, kind),
                          {stream, fmt::format("{:#x}", stream)},
                          one.segments,
                          one.reserved,
                          one.allocated + one.pending,
                          one.requested,
                          one.free,
                          one.largest_free,
                          Json{id.first, id.second},
                          kind == PoolKind::small ? "small" : "large",
                          one.allocated,
                          one.pending,
                          one.live_blocks,
                          one.free_blocks,
                          one.internal(),
                          one.external()});
  }
  return table;
}

Table sites_table(const std::vector<SiteFigures>& sites, std::size_t top) {
  Table table{
      .key = "sites",
      .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = 12},
                  {.key = "blocks", .title = "blocks", .unit = Unit::count, .width = 8},
                  hidden_column("file"),
                  hidden_column("line"),
                  hidden_column("function"),
                  {.title = "lines of the program, by the live memory that they allocated", .views = kTextAlone}},
      .is_apart = true,
      .views = kNotOnPage};  // the page has lines at each moment
  for (const SiteFigures& site : sites)
    table.rows.push_back({site.bytes,
                          site.blocks,
                          std::string(site.place.file),
                          site.place.line,
                          std::string(site.place.function),
                          {nullptr, name_text(site)}});
  table.show_first(top, "and {} more lines");
  return table;
}

Section section_of(const Timeline& timeline, Sites& sites, std::size_t top) {
  const History& history = timeline.history();
  const DeviceHistory& device = timeline.device();
  Figures all;
  std::map<PoolKey, Figures> pools;
  for (const HistorySegment& segment : device.segments) {
    const auto blocks = device.blocks_of(segment);
    const PoolKind kind = segment.is_small ? PoolKind::small : PoolKind::large;
    all.add(segment, blocks);
    pools[{history.pools[segment.pool], kind, history.streams[segment.stream]}].add(segment, blocks);
  }
  const std::vector<SiteFigures> lines = sites_of(history, sites, device);
  Section section;
  section.add_value("device", device.device);
  std::optional<Moment> peak;
  if (!device.events.empty()) peak = timeline.moment(MomentKind::allocated_peak);
  add_peak(section, peak, device.events.size());
  add_figures(section, all, peak.has_value());
  add_history(section, device.events);
  section.add_value("site_count", lines.size());
  return section.add(pools_table(pools)).add(sites_table(lines, top));
}

}  // namespace

Section report_of(const Timelines& timelines, std::size_t top) {
  const History& history = timelines.history();
  const std::span<const Timeline> devices = timelines.devices();
  Sites sites(history);
  Section root(printable(history.path));
  root.add_value("snapshot", history.path).add_value("settings", history.settings);
  root.add_value("unknown_actions", history.unknown_actions);
  if (devices.empty())
    root.add(Note{
        .text = history.unknown_actions == 0 ? "  no memory is held, and there is no history" : "  no memory is held",
        .is_wrapped = false});
  Section list = list_of("devices");
  for (const Timeline& timeline : devices) {
    const int number = timeline.device().device;
    Section device = section_of(timeline, sites, top);
    if (devices.size() > 1 || number != 0) device.title = fmt::format("device {}", number);
    list.add(std::move(device));
  }
  root.add(std::move(list));
  if (history.unknown_actions > 0)
    root.add_line("left out of the history", unknown_actions_text(history.unknown_actions));
  return root;
}

}  // namespace cachalot::tools
