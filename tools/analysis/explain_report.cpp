#include "tools/analysis/explain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "tools/json_text.h"
#include "tools/quoted.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

std::string part_text(std::uint64_t part, std::uint64_t whole) {
  return percent_text(whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole));
}

std::string moment_text(const Explanation& one) {
  std::string text = fmt::format("event {} of {}, {:.3f} s after the first", with_commas(one.peak.event),
                                 with_commas(one.events), static_cast<double>(one.since_begin_us) / 1e6);
  if (!one.at.empty()) text += fmt::format(", by {}", Printable{one.at});
  return text;
}

std::string heading_of(const Explanation& one) {
  if (one.peak.kind == PeakKind::out_of_memory) return "ran out of memory";
  return one.peak.kind == PeakKind::end ? "at the end" : "peak";
}

std::uint64_t cached_bytes(const Explanation& one) {
  return one.peak.held.reserved - std::min(one.peak.held.reserved, one.peak.held.allocated);
}

std::string figures_text(const Explanation& one) {
  const Held& held = one.peak.held;
  std::string text;
  if (one.events > 0) text += labelled_line(heading_of(one), moment_text(one));
  if (held.reserved > 0) {
    text += labelled_line("reserved", fmt::format("{}, at the most {}", format_bytes(held.reserved),
                                                  format_bytes(std::max(one.peak_reserved_bytes, held.reserved))));
  }
  text += labelled_line("allocated", format_bytes(held.allocated));
  text += labelled_line("unavoidable",
                        fmt::format("{}: what the program had asked for and not freed", format_bytes(held.requested)));
  if (held.reserved > 0)
    text += labelled_line("cached", fmt::format("{}, {} of what was reserved", format_bytes(cached_bytes(one)),
                                                part_text(cached_bytes(one), held.reserved)));
  return text;
}

std::string table(std::string_view what, std::string_view unknown, const std::vector<Share>& shares,
                  std::uint64_t whole, std::size_t top) {
  if (shares.empty() || top == 0) return "";
  std::string text = fmt::format("\n  {:>12} {:>8} {:>12}  {}\n", "bytes", "part", "allocations", what);
  for (std::size_t i = 0; i < std::min(top, shares.size()); ++i) {
    const Share& share = shares[i];
    text += fmt::format("  {:>12} {:>8} {:>12}  {}\n", format_bytes(share.bytes), part_text(share.bytes, whole),
                        with_commas(share.count), Printable{share.name.empty() ? unknown : share.name});
  }
  if (shares.size() > top) text += fmt::format("  and {} more\n", with_commas(shares.size() - top));
  return text;
}

// Tables with one row that says nothing are left out.
bool tells(const std::vector<Share>& shares, std::string_view usual) {
  return shares.size() > 1 || (shares.size() == 1 && shares.front().name != usual);
}

std::string tables_text(const Explanation& one, std::size_t top) {
  const std::uint64_t whole = one.peak.held.requested;
  const Shares& shares = one.shares;
  std::string text = table("live, by category", "unknown", shares.categories, whole, top);
  if (tells(shares.modules, ""))
    text += table("by module: the calls of forward", "outside of modules", shares.modules, whole, top);
  text += table("by line of the program", "no call stack was recorded", shares.lines, whole, top);
  if (tells(shares.pools, "default")) text += table("by pool", "", shares.pools, whole, top);
  if (tells(shares.streams, "0x0")) text += table("by stream", "", shares.streams, whole, top);
  if (tells(shares.stages, "")) text += table("by stage", "outside of stages", shares.stages, whole, top);
  return text;
}

std::string tree_text(const Explanation& one) {
  if (one.tree.empty()) return "";
  std::string text = "\n  calls with 2 % of it or more, the outermost first\n";
  for (const TreeLine& line : one.tree)
    text += fmt::format("  {:>12} {:>8}  {:{}}{}\n", format_bytes(line.bytes),
                        part_text(line.bytes, one.peak.held.requested), "", 2 * line.depth, Printable{line.at});
  return text;
}

std::string pins_text(const Explanation& one) {
  if (one.pins.empty()) return "";
  std::string text =
      fmt::format("\n  {:>12} {:>12}  live blocks that keep free memory in their segments\n", "free", "blocks");
  for (const NamedPin& pin : one.pins) {
    text +=
        fmt::format("  {:>12} {:>12}  {} in {} of {}\n", format_bytes(pin.pin.free_bytes), with_commas(pin.pin.blocks),
                    format_bytes(pin.pin.block_bytes), format_count(pin.pin.segments, "segment"),
                    pin.at.empty() ? "unknown lines" : fmt::format("{}", Printable{pin.at}));
  }
  return text;
}

std::string growths_text(const Explanation& one, std::size_t top) {
  if (one.growths.empty()) return "";
  std::string text = fmt::format("\n  {:>12} {:>12}  lines whose memory grew with the steps\n", "bytes", "allocations");
  for (std::size_t i = 0; i < std::min(top, one.growths.size()); ++i) {
    const NamedGrowth& growth = one.growths[i];
    text += fmt::format("  {:>12} {:>12}  {}\n", format_bytes(growth.bytes), with_commas(growth.allocations),
                        Printable{growth.at});
  }
  return text;
}

std::string temporaries_text(const Explanation& one, std::size_t top) {
  constexpr std::size_t kMost = 5;
  if (one.temporaries.empty()) return "";
  std::string text = fmt::format("\n  {:>12} {:>12}  temporaries of one size that a pool of buffers would spare\n",
                                 "each", "allocations");
  for (std::size_t i = 0; i < std::min({top, kMost, one.temporaries.size()}); ++i) {
    const Temporary& temporary = one.temporaries[i];
    text += fmt::format("  {:>12} {:>12}  {}, at most {} at once\n", format_bytes(temporary.bytes),
                        with_commas(temporary.count), Printable{temporary.at}, temporary.most_live);
  }
  return text;
}

std::string remedies_text(const Explanation& one, const Style& style) {
  const Remedies& remedies = one.remedies;
  if (remedies.of_bytes == 0) return "";
  if (remedies.best.empty())
    return fmt::format("\n  No setting helps: replayed, the program holds {} with all of them, or more.\n",
                       format_bytes(remedies.of_bytes));
  std::string text =
      fmt::format("\n  what helps: replayed, the program holds {} now\n", format_bytes(remedies.of_bytes));
  for (const Remedy& remedy : remedies.best) {
    text += fmt::format("  {:>12}  {}{}\n", format_bytes(remedy.reserved_bytes), style.good(remedy.setting),
                        remedy.serves ? ", which serves the request" : "");
  }
  return text;
}

nlohmann::ordered_json json_of_shares(const std::vector<Share>& shares, std::size_t top) {
  auto list = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < std::min(top, shares.size()); ++i)
    list.push_back({{"name", shares[i].name}, {"bytes", shares[i].bytes}, {"allocations", shares[i].count}});
  return list;
}

nlohmann::ordered_json json_of_cached(const Cached& cached) {
  return {{"bytes", cached.bytes},
          {"largest_bytes", cached.largest_bytes},
          {"pieces", cached.pieces},
          {"segments", cached.segments}};
}

template <typename Number>
nlohmann::ordered_json or_null(const std::optional<Number>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json verdict_json(const Explanation& one) {
  const Evidence& evidence = one.evidence;
  nlohmann::ordered_json facts;
  facts["requested_bytes"] = evidence.failure ? nlohmann::ordered_json(evidence.failure->requested_bytes) : nullptr;
  facts["device_free_bytes"] = evidence.failure ? or_null(evidence.failure->device_free_bytes) : nullptr;
  facts["device_total_bytes"] = or_null(evidence.total_bytes);
  facts["limit_bytes"] = or_null(evidence.limit_bytes);
  facts["other_process_bytes"] = or_null(evidence.other_process_bytes);
  facts["own_outside_bytes"] = or_null(evidence.own_outside_bytes);
  facts["nccl_bytes"] = or_null(evidence.nccl_bytes);
  facts["growing_bytes"] = evidence.leaked_bytes;
  return {{"cause", key_of(one.cause)}, {"text", one.text}, {"evidence", std::move(facts)}};
}

nlohmann::ordered_json cached_json(const Explanation& one) {
  nlohmann::ordered_json cached = {{"bytes", cached_bytes(one)}};
  for (std::size_t i = 0; i <= static_cast<std::size_t>(Cause::cached_by_rounding); ++i) {
    const auto cause = static_cast<Cause>(i);
    cached[std::string(key_of(cause))] = json_of_cached(one.evidence.of(cause));
  }
  cached["pins"] = nlohmann::ordered_json::array();
  for (const NamedPin& pin : one.pins)
    cached["pins"].push_back({{"at", pin.at},
                              {"free_bytes", pin.pin.free_bytes},
                              {"block_bytes", pin.pin.block_bytes},
                              {"blocks", pin.pin.blocks},
                              {"segments", pin.pin.segments}});
  return cached;
}

std::string_view kind_of(const Explanation& one) {
  if (one.peak.kind == PeakKind::out_of_memory) return "out_of_memory";
  return one.peak.kind == PeakKind::end ? "end" : "allocated_peak";
}

void add_lists(nlohmann::ordered_json& json, const Explanation& one, std::size_t top) {
  const auto list = [&](const char* key) -> nlohmann::ordered_json& {
    return json[key] = nlohmann::ordered_json::array();
  };
  auto& growing = list("growing");
  for (std::size_t i = 0; i < std::min(top, one.growths.size()); ++i) {
    const NamedGrowth& growth = one.growths[i];
    growing.push_back({{"at", growth.at}, {"bytes", growth.bytes}, {"allocations", growth.allocations}});
  }
  auto& temporaries = list("temporaries");
  for (std::size_t i = 0; i < std::min(top, one.temporaries.size()); ++i) {
    const Temporary& temporary = one.temporaries[i];
    temporaries.push_back({{"at", temporary.at},
                           {"bytes", temporary.bytes},
                           {"allocations", temporary.count},
                           {"most_live", temporary.most_live}});
  }
  auto& tree = list("tree");
  for (const TreeLine& line : one.tree)
    tree.push_back({{"depth", line.depth}, {"bytes", line.bytes}, {"allocations", line.count}, {"at", line.at}});
  auto& remedies = list("remedies");
  for (const Remedy& remedy : one.remedies.best)
    remedies.push_back({{"key", remedy.key},
                        {"setting", remedy.setting},
                        {"text", remedy.text},
                        {"reserved_bytes", remedy.reserved_bytes},
                        {"of_bytes", one.remedies.of_bytes},
                        {"serves", remedy.serves}});
}

nlohmann::ordered_json json_of_device(const Explanation& one, std::size_t top) {
  const Held& held = one.peak.held;
  nlohmann::ordered_json json = {{"device", one.device}, {"verdict", verdict_json(one)}};
  json["peak"] = {{"kind", kind_of(one)},
                  {"event", one.peak.event},
                  {"events", one.events},
                  {"time_us", one.peak.time_us},
                  {"at", one.at},
                  {"requested_bytes", held.requested},
                  {"allocated_bytes", held.allocated},
                  {"active_bytes", held.active},
                  {"reserved_bytes", held.reserved},
                  {"peak_reserved_bytes", one.peak_reserved_bytes}};
  json["unavoidable_bytes"] = held.requested;
  json["categories"] = json_of_shares(one.shares.categories, top);
  json["modules"] = json_of_shares(one.shares.modules, top);
  json["lines"] = json_of_shares(one.shares.lines, top);
  json["pools"] = json_of_shares(one.shares.pools, top);
  json["streams"] = json_of_shares(one.shares.streams, top);
  json["stages"] = json_of_shares(one.shares.stages, top);
  json["cached"] = cached_json(one);
  add_lists(json, one, top);
  return json;
}

}  // namespace

std::string to_text(const Explanation& one, std::size_t top, const Style& style) {
  std::string text;
  if (one.cause != Cause::none) {
    text += "  " + style.bold(fmt::format("{:<24}", "cause")) + " " +
            wrapped(fmt::format("{}: {}", key_of(one.cause), Printable{one.text}), 27);
  }
  text += figures_text(one) + tables_text(one, top) + tree_text(one) + pins_text(one) + growths_text(one, top) +
          temporaries_text(one, top) + remedies_text(one, style);
  return text;
}

std::string to_json(const std::string& file, const std::string& settings, const std::vector<Explanation>& explanations,
                    std::size_t top) {
  nlohmann::ordered_json json = {{"file", file},
                                 {"settings", settings},
                                 {"devices", nlohmann::ordered_json::array()},
                                 {"host", nlohmann::ordered_json::array()}};
  for (const Explanation& one : explanations)
    json[one.is_host ? "host" : "devices"].push_back(json_of_device(one, top));
  return text_of(json);
}

}  // namespace cachalot::tools
