#include "tools/analysis/explanation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "tools/analysis/message_report.h"
#include "tools/analysis/remedies.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

std::string part_text(std::uint64_t part, std::uint64_t whole) {
  return percent_text(whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole));
}

std::string moment_text(const Explanation& one) {
  if (one.process && one.events == 1 && !one.at.empty()) return fmt::format("by {}", Printable{one.at});
  std::string text = fmt::format("event {} of {}", with_commas(one.peak.event), with_commas(one.events));
  if (one.since_begin_us > 0)  // old snapshots have no times
    text += fmt::format(", {:.3f} s after the first", static_cast<double>(one.since_begin_us) / 1e6);
  if (!one.at.empty()) text += fmt::format(", by {}", Printable{one.at});
  return text;
}

std::string heading_of(const Explanation& one) {
  if (one.peak.kind == MomentKind::out_of_memory) return "ran out of memory";
  return one.peak.kind == MomentKind::end ? "at the end" : "peak";
}

std::string_view kind_of(const Explanation& one) {
  if (one.peak.kind == MomentKind::out_of_memory) return "out_of_memory";
  return one.peak.kind == MomentKind::end ? "end" : "allocated_peak";
}

std::uint64_t cached_bytes(const Explanation& one) {
  return one.peak.held.reserved - std::min(one.peak.held.reserved, one.peak.held.allocated);
}

Section verdict_section(const Explanation& one) {
  const Evidence& evidence = one.evidence;
  Section facts = object_of("evidence");
  facts.add_value("requested_bytes", evidence.failure ? Json(evidence.failure->requested_bytes) : nullptr);
  facts.add_value("device_free_bytes", evidence.failure ? or_null(evidence.failure->device_free_bytes) : nullptr);
  facts.add_value("device_total_bytes", or_null(evidence.total_bytes));
  facts.add_value("limit_bytes", or_null(evidence.limit_bytes));
  facts.add_value("other_process_bytes", or_null(evidence.other_process_bytes));
  facts.add_value("own_outside_bytes", or_null(evidence.own_outside_bytes));
  facts.add_value("outside_bytes", or_null(evidence.unnamed_bytes));
  facts.add_value("nccl_bytes", or_null(evidence.nccl_bytes));
  facts.add_value("growing_bytes", evidence.leaked_bytes).add_value("waiting_bytes", evidence.waiting_bytes);
  Section verdict = object_of("verdict");
  verdict.add_value("cause", key_of(one.cause)).add_value("text", one.text);
  verdict.add_value("recommendation", one.recommendation).add(std::move(facts));
  if (one.cause != Cause::none)
    verdict.add(Figure{.key = "",
                       .label = "cause",
                       .cell = {nullptr, fmt::format("{}: {}", key_of(one.cause), Printable{one.text})},
                       .is_answer = true});
  if (one.process && !one.recommendation.empty())
    verdict.add(Figure{.label = "recommendation", .cell = {nullptr, one.recommendation}, .is_answer = true});
  return verdict;
}

// The moment and its memory. A message without figures tells nothing of memory in use.
Section peak_section(const Explanation& one) {
  const Held& held = one.peak.held;
  const bool tells_use = !one.message || one.message->allocated_bytes;
  Section peak = object_of("peak");
  peak.add_value("kind", kind_of(one)).add_value("events", one.events).add_value("time_us", one.peak.time_us);
  peak.add_value("at", one.at).add_value("active_bytes", held.active);
  peak.add_value("peak_reserved_bytes", one.peak_reserved_bytes);
  peak.add(Figure{
      .key = "event", .label = one.events > 0 ? heading_of(one) : "", .cell = {one.peak.event, moment_text(one)}});
  if (one.events > 1 && one.earlier_bytes > 0)
    peak.add_line("history begins",
                  fmt::format("with {} allocated: what was before is not known", format_bytes(one.earlier_bytes)));
  peak.add_bytes("reserved_bytes", held.reserved > 0 ? "reserved" : "", held.reserved,
                 fmt::format(", at the most {}", format_bytes(std::max(one.peak_reserved_bytes, held.reserved))));
  peak.add_bytes("allocated_bytes", tells_use ? "allocated" : "", held.allocated);
  peak.add_bytes("requested_bytes", tells_use ? "unavoidable" : "", held.requested,
                 ": what the program had asked for and not freed");
  return peak;
}

// "module" of "by module: the calls of forward".
std::string divided_by(std::string_view title) {
  title = title.substr(title.find("by ") + 3);
  return std::string(title.substr(0, title.find(':')));
}

Table shares_table(std::string key, const std::string& title, std::string unknown, const std::vector<Share>& shares,
                   const Explanation& one, std::size_t top) {
  Table table{
      .key = std::move(key),
      .title = title,
      .note = "Live at the moment of the verdict.",
      .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = 12},
                  {.title = "part", .width = 8, .views = kTextAlone},
                  {.key = "allocations", .title = "allocations", .unit = Unit::count, .width = 12},
                  {.key = "name", .title = title, .unknown = std::move(unknown), .page_title = divided_by(title)}},
      .is_apart = true};
  for (const Share& share : shares)
    table.rows.push_back(
        {share.bytes, {nullptr, part_text(share.bytes, one.peak.held.requested)}, share.count, share.name});
  table.show_first(top);
  return table;
}

// A table with one row that says nothing is for programs alone.
void add_telling(Section& section, Table table, const std::vector<Share>& shares, std::string_view usual) {
  const bool tells = shares.size() > 1 || (shares.size() == 1 && shares.front().name != usual);
  if (!tells) table.views = kJsonAlone;
  section.add(std::move(table));
}

void add_shares(Section& section, const Explanation& one, std::size_t top) {
  const Shares& shares = one.shares;
  const auto table = [&](const char* key, const char* title, const char* unknown, const std::vector<Share>& list) {
    return shares_table(key, title, unknown, list, one, top);
  };
  Table categories = table("categories", "live, by category", "unknown", shares.categories);
  categories.views.page = false;  // the page has them at each moment, and lines as well
  if (one.process) {
    add_telling(section, std::move(categories), shares.categories, "unknown");
  } else {
    section.add(std::move(categories));
  }
  add_telling(section, table("modules", "by module: the calls of forward", "outside of modules", shares.modules),
              shares.modules, "");
  Table lines = table("lines", "by line of the program", "no call stack was recorded", shares.lines);
  lines.views.page = false;
  if (one.process) {
    add_telling(section, std::move(lines), shares.lines, "");
  } else {
    section.add(std::move(lines));
  }
  add_telling(section, table("pools", "by pool", "", shares.pools), shares.pools, "default");
  add_telling(section, table("streams", "by stream", "", shares.streams), shares.streams, "0x0");
  add_telling(section, table("stages", "by stage", "outside of stages", shares.stages), shares.stages, "");
}

Table tree_table(const Explanation& one) {
  Table table{.key = "tree",
              .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = 12},
                          {.title = "part", .width = 8, .views = kTextAlone},
                          hidden_column("depth"),
                          hidden_column("allocations"),
                          {.key = "at", .title = "at"}},
              .heading = "calls with 2 % of it or more, the outermost first",
              .has_header = false,
              .is_apart = true,
              .views = kNotOnPage};
  for (const TreeLine& line : one.tree)
    table.rows.push_back({line.bytes,
                          {nullptr, part_text(line.bytes, one.peak.held.requested)},
                          line.depth,
                          line.count,
                          {line.at, fmt::format("{:{}}{}", "", 2 * line.depth, Printable{line.at})}});
  return table;
}

Table pins_table(const Explanation& one) {
  Table table{.key = "pins",
              .title = "Blocks that pin cached memory",
              .note = "Free memory of a segment cannot be given back while a block lives in it.",
              .columns = {{.key = "free_bytes", .title = "free", .unit = Unit::bytes, .width = 12},
                          {.key = "blocks", .title = "blocks", .unit = Unit::count, .width = 12},
                          {.key = "block_bytes", .title = "their own", .unit = Unit::bytes, .views = kNotInText},
                          {.key = "segments", .title = "segments", .unit = Unit::count, .views = kNotInText},
                          {.key = "at", .title = "allocated at", .views = kNotInText},
                          {.title = "live blocks that keep free memory in their segments", .views = kTextAlone}},
              .is_apart = true};
  for (const Pin& pin : one.pins) {
    table.rows.push_back(
        {pin.free_bytes,
         pin.blocks,
         pin.block_bytes,
         pin.segments,
         pin.at,
         {nullptr, fmt::format("{} in {} of {}", format_bytes(pin.block_bytes), format_count(pin.segments, "segment"),
                               pin.at.empty() ? "unknown lines" : printable(pin.at))}});
  }
  return table;
}

// Returns the memory that PyTorch held beyond live blocks, by the reason that withheld it from the request.
Section cached_section(const Explanation& one) {
  Section cached = object_of("cached");
  const bool is_shown = one.peak.held.reserved > 0 && (!one.message || one.message->allocated_bytes);
  cached.add_bytes("bytes", is_shown ? "cached" : "", cached_bytes(one),
                   fmt::format(", {} of what was reserved", part_text(cached_bytes(one), one.peak.held.reserved)));
  for (std::size_t i = 0; i <= static_cast<std::size_t>(Cause::cached_by_rounding); ++i) {
    const Cached& of_cause = one.evidence.of(static_cast<Cause>(i));
    Section kind = object_of(std::string(key_of(static_cast<Cause>(i))));
    kind.add_value("bytes", of_cause.bytes).add_value("largest_bytes", of_cause.largest_bytes);
    kind.add_value("pieces", of_cause.pieces).add_value("segments", of_cause.segments);
    cached.add(std::move(kind));
  }
  Table pins = pins_table(one);
  pins.views.text = pins.views.page = false;
  return cached.add(std::move(pins));
}

Table growths_table(const Explanation& one, std::size_t top) {
  Table table{
      .key = "growing",
      .title = "Memory that grows with the steps",
      .note = "Live memory that was allocated throughout the history.",
      .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = 12},
                  {.key = "allocations", .title = "allocations", .unit = Unit::count, .width = 12},
                  {.key = "at", .title = "lines whose memory grew with the steps", .page_title = "allocated at"}},
      .is_apart = true};
  for (const Growth& growth : one.growths) table.rows.push_back({growth.bytes, growth.allocations.size(), growth.at});
  table.show_first(top, "");
  return table;
}

Table temporaries_table(const Explanation& one, std::size_t top) {
  Table table{.key = "temporaries",
              .title = "Short-lived allocations",
              .note = "A pool of buffers would spare them.",
              .columns = {{.key = "bytes", .title = "each", .unit = Unit::bytes, .width = 12},
                          {.key = "allocations", .title = "allocations", .unit = Unit::count, .width = 12},
                          {.key = "most_live", .title = "most at once", .unit = Unit::count, .views = kNotInText},
                          {.key = "at", .title = "allocated at", .views = kNotInText},
                          {.title = "temporaries of one size that a pool of buffers would spare", .views = kTextAlone}},
              .is_apart = true};
  for (const Temporary& each : one.temporaries)
    table.rows.push_back({each.bytes,
                          each.count,
                          each.most_live,
                          each.at,
                          {nullptr, fmt::format("{}, at most {} at once", Printable{each.at}, each.most_live)}});
  table.most_in_text = 5;
  table.show_first(top, "");
  return table;
}

// Says what the replays have in common.
std::string remedies_heading(const Explanation& one) {
  const Remedies& remedies = one.remedies;
  std::string text =
      fmt::format("what helps: replayed{}, the program holds {} now",
                  one.evidence.failure ? " with the request that failed" : "", format_bytes(remedies.of_bytes));
  if (remedies.recorded_bytes)
    text += fmt::format("\n  (it held {}: the replay is not exact, and these figures are not either)",
                        format_bytes(*remedies.recorded_bytes));
  return text;
}

std::string range_text(const Remedy& remedy) {
  const std::string least = format_bytes(remedy.range.least);
  const std::string most = format_bytes(remedy.range.most);
  return least == most ? "" : fmt::format(" ({} to {}, by the timing of kernels and threads)", least, most);
}

void add_remedies(Section& section, const Explanation& one) {
  const Remedies& remedies = one.remedies;
  Table table{.key = "remedies",
              .columns = {{.key = "key", .views = kNotInText},
                          {.key = "setting", .views = kNotInText},
                          {.key = "text", .views = kNotInText},
                          {.key = "reserved_bytes", .title = "reserved", .unit = Unit::bytes, .width = 12},
                          hidden_column("least_reserved_bytes"),
                          hidden_column("most_reserved_bytes"),
                          {.key = "of_bytes", .unit = Unit::bytes, .views = kNotInText},
                          {.key = "serves", .views = kNotInText},
                          {.title = "to set", .views = kTextAlone}},
              .heading = remedies_heading(one),
              .has_header = false,
              .is_apart = true,
              .views = kNotOnPage};  // the page's verdict has them
  for (const Remedy& remedy : remedies.best)
    table.rows.push_back(
        {remedy.key,
         remedy.setting,
         remedy.text,
         remedy.reserved_bytes,
         remedy.range.least,
         remedy.range.most,
         remedies.of_bytes,
         remedy.serves,
         {nullptr,
          fmt::format("{}{}{}", remedy.setting, remedy.serves ? ", which serves the request" : "", range_text(remedy)),
          Mood::good}});
  section.add(std::move(table));
  if (remedies.of_bytes == 0 || !remedies.best.empty()) return;
  const std::string text =
      one.evidence.failure
          ? "\n  None of the settings that were tried serves the request, replayed."
          : fmt::format(
                "\n  None of the settings that were tried saves 1 % of the {} that the program holds, replayed.",
                format_bytes(remedies.of_bytes));
  section.add(Note{.text = text, .is_wrapped = false});
}

}  // namespace

Section report_of(const Explanation& one, std::size_t top) {
  Section section;
  section.add_value("device", one.device).add(verdict_section(one)).add(peak_section(one));
  section.add_value("unavoidable_bytes", one.peak.held.requested).add(cached_section(one));
  if (one.process) add_figures(section, *one.process, one.evidence);
  if (one.message) {
    section.add(message_section(*one.message));
  } else {
    section.add_value("message", nullptr);
  }
  add_shares(section, one, top);
  section.add(tree_table(one));
  Table pins = pins_table(one);
  pins.key = "";
  section.add(std::move(pins)).add(growths_table(one, top)).add(temporaries_table(one, top));
  add_tables(section, one.process.value_or(FailingProcess()), top);
  add_remedies(section, one);
  return section;
}

}  // namespace cachalot::tools
