#include "tools/pages/explanation_page.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

using Kind = PageTable::Kind;

std::string named(std::string_view name, std::string_view otherwise) {
  return std::string(name.empty() ? otherwise : name);
}

std::string page_moment_text(const Explanation& one, bool is_one_of_many) {
  std::string text = fmt::format("{}{}vent {} of {}: {} in use of {} reserved", is_one_of_many ? name_of(one) : "",
                                 is_one_of_many ? ", e" : "E", with_commas(one.peak.event), with_commas(one.events),
                                 format_bytes(one.peak.held.allocated), format_bytes(one.peak.held.reserved));
  if (!one.at.empty()) text += fmt::format(", at {}", one.at);
  return text + ".";
}

PageRemedy page_remedy(const Remedy& remedy, std::uint64_t of_bytes) {
  std::string evidence =
      remedy.serves ? "Replayed with it, the request is served." : "Replayed with it, the program reserves as much.";
  if (remedy.reserved_bytes != of_bytes) {
    evidence =
        fmt::format("Replayed with it, the program reserves {} instead of {}{}.", format_bytes(remedy.reserved_bytes),
                    format_bytes(of_bytes), remedy.serves ? ", and the request is served" : "");
  }
  return {.title = remedy.text, .evidence = std::move(evidence), .setting = remedy.setting};
}

PageTable pins_table(const Explanation& one) {
  PageTable table{.title = "Blocks that pin cached memory",
                  .note = "Free memory of a segment cannot be given back while a block lives in it.",
                  .columns = {{"free memory that they pin", Kind::bytes},
                              {"their own", Kind::bytes},
                              {"blocks", Kind::count},
                              {"segments", Kind::count},
                              {"allocated at", Kind::text}},
                  .rows = {}};
  for (const auto& [at, pin] : one.pins) {
    table.rows.push_back({pin.free_bytes, pin.block_bytes, pin.blocks, pin.segments, at});
  }
  return table;
}

PageTable growths_table(const Explanation& one) {
  PageTable table{.title = "Memory that grows with the steps",
                  .note = "Live memory that was allocated throughout the history.",
                  .columns = {{"held", Kind::bytes}, {"allocations", Kind::count}, {"allocated at", Kind::text}},
                  .rows = {}};
  for (const NamedGrowth& growth : one.growths) table.rows.push_back({growth.bytes, growth.allocations, growth.at});
  return table;
}

PageTable temporaries_table(const Explanation& one) {
  PageTable table{.title = "Short-lived allocations",
                  .note = "A pool of buffers would spare them.",
                  .columns = {{"bytes of each", Kind::bytes},
                              {"allocations", Kind::count},
                              {"most at once", Kind::count},
                              {"allocated at", Kind::text}},
                  .rows = {}};
  for (const Temporary& each : one.temporaries) {
    table.rows.push_back({each.bytes, each.count, each.most_live, each.at});
  }
  return table;
}

PageTable shares_table(std::string_view title, std::string_view what, const std::vector<Share>& shares) {
  PageTable table{
      .title = std::string(title),
      .note = "Live at the moment of the verdict.",
      .columns = {{"requested", Kind::bytes}, {"allocations", Kind::count}, {std::string(what), Kind::text}},
      .rows = {}};
  if (shares.size() == 1 && shares.front().name.empty()) return table;  // nothing is known
  for (const Share& share : shares) table.rows.push_back({share.bytes, share.count, named(share.name, "not known")});
  return table;
}

void add_if_any(PageReport& report, PageTable table, std::string_view device) {
  if (table.rows.empty()) return;
  table.title += device;
  report.tables.push_back(std::move(table));
}

}  // namespace

void add_explanations(PageReport& report, std::span<const Explanation> explanations) {
  for (const Explanation& one : explanations) {
    const std::string device = explanations.size() > 1 ? ", " + name_of(one) : "";
    PageVerdict& verdict = report.verdict;
    if (verdict.headline.empty()) {
      verdict.headline = one.text;
    } else if (!one.text.empty()) {
      verdict.paragraphs.push_back(fmt::format("{}: {}", name_of(one), one.text));
    }
    verdict.paragraphs.push_back(page_moment_text(one, explanations.size() > 1));
    for (const Remedy& remedy : one.remedies.best) {
      verdict.remedies.push_back(page_remedy(remedy, one.remedies.of_bytes));
    }
    add_if_any(report, pins_table(one), device);
    add_if_any(report, growths_table(one), device);
    add_if_any(report, shares_table("By module", "module", one.shares.modules), device);
    add_if_any(report, shares_table("By stage", "stage", one.shares.stages), device);
    add_if_any(report, temporaries_table(one), device);
  }
}

}  // namespace cachalot::tools
