#include "tools/pages/difference_page.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace cachalot::tools {
namespace {

std::string growth_text(std::int64_t bytes) {
  const std::uint64_t size = bytes < 0 ? 0 - static_cast<std::uint64_t>(bytes) : static_cast<std::uint64_t>(bytes);
  return fmt::format("{} {}", format_bytes(size), bytes < 0 ? "less" : "more");
}

PageTable table_of(const DifferenceList& list) {
  using Kind = PageTable::Kind;
  PageTable table{.title = fmt::format("What grew, by {}", list.name),
                  .note = "",
                  .columns = {{"grew by", Kind::growth},
                              {"first", Kind::bytes},
                              {"second", Kind::bytes},
                              {"change", Kind::text},
                              {list.name, Kind::text}},
                  .rows = {}};
  for (const DifferenceRow& row : list.rows) {
    const std::string name = row.was.empty() ? row.name : fmt::format("{} (was {})", row.name, row.was);
    table.rows.push_back({row.bytes.growth(), row.bytes.a, row.bytes.b, row.change(), name});
  }
  return table;
}

}  // namespace

void add_difference(PageReport& report, const Difference& difference) {
  for (const DeviceDifference& device : difference.devices) {
    const std::string text =
        fmt::format("{} holds {} than {}", difference.paths[1], growth_text(device.growth()), difference.paths[0]);
    if (report.verdict.headline.empty()) {
      report.verdict.headline = text;
    } else {
      report.verdict.paragraphs.push_back(text);
    }
    for (const DifferenceList& list : device.lists) report.tables.push_back(table_of(list));
  }
}

}  // namespace cachalot::tools
