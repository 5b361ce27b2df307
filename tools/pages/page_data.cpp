#include "tools/pages/page_data.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

#include "cachalot/version.h"
#include "tools/history/tables.h"
#include "tools/json_text.h"
#include "tools/pages/column_writer.h"
#include "tools/pages/run_data.h"

namespace cachalot::tools {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const PageVerdict& verdict) {
  Json remedies = Json::array();
  for (const PageRemedy& remedy : verdict.remedies) {
    remedies.push_back({{"title", remedy.title}, {"evidence", remedy.evidence}, {"setting", remedy.setting}});
  }
  return {{"headline", verdict.headline}, {"paragraphs", verdict.paragraphs}, {"remedies", std::move(remedies)}};
}

Json json_of(const PageTable& table) {
  static constexpr std::array kKinds = {"text", "bytes", "growth", "count", "number"};
  Json columns = Json::array();
  for (const PageTable::Column& column : table.columns) {
    columns.push_back({column.title, kKinds[static_cast<std::size_t>(column.kind)]});
  }
  return {{"title", table.title}, {"note", table.note}, {"columns", std::move(columns)}, {"rows", table.rows}};
}

}  // namespace

std::string page_data(const PageReport& report, const CategoryRules& rules) {
  ColumnWriter columns;
  TextTable texts;
  Json runs = Json::array();
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    runs.push_back(add_run(report.runs[i], rules, fmt::format("{}/", i), columns, texts));
  }
  Json tables = Json::array();
  for (const PageTable& table : report.tables) tables.push_back(json_of(table));
  Json names = Json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) names.push_back(std::string(texts[static_cast<TextId>(i)]));
  const std::string json = text_of({{"title", report.title},
                                    {"command", report.command},
                                    {"version", CACHALOT_VERSION_STRING},
                                    {"verdict", json_of(report.verdict)},
                                    {"runs", std::move(runs)},
                                    {"compares", report.compares},
                                    {"tables", std::move(tables)},
                                    {"texts", std::move(names)},
                                    {"columns", columns.directory()}});
  return fmt::format("{:08x}{}{}", json.size(), json, columns.bytes());
}

}  // namespace cachalot::tools
