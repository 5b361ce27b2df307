#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tools/base/report_tree.h"
#include "tools/output/html_report.h"

namespace cachalot::tools {
namespace {

// Numbers stay numbers, so that the page sorts by them.
Json page_cell(const Cell& cell, const Column& column) {
  if ((column.unit == Unit::text || column.has_text_on_page) && !cell.text.empty()) return cell.text;
  return cell.value == Json("") ? Json(column.unknown) : cell.value;
}

Json page_table(const Table& table, const std::string& of, const std::string& remarks) {
  static constexpr std::array kKinds = {"text", "bytes", "growth", "count", "number", "part", "time"};
  const auto is_shown = [](const Column& column) { return column.views.page && !column.title.empty(); };
  Json columns = Json::array();
  for (const Column& column : table.columns) {
    if (!is_shown(column)) continue;
    columns.push_back(
        {column.page_title.empty() ? column.title : column.page_title, kKinds[static_cast<std::size_t>(column.unit)]});
  }
  Json rows = Json::array();
  for (const std::vector<Cell>& row : table.rows) {
    Json cells = Json::array();
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!is_shown(table.columns[i])) continue;
      cells.push_back(page_cell(row[i], table.columns[i]));
    }
    rows.push_back(std::move(cells));
  }
  const std::string title = of.empty() ? table.title : fmt::format("{}, {}", table.title, of);
  return {{"title", title},
          {"note", table.note.empty() ? remarks : table.note},
          {"columns", std::move(columns)},
          {"rows", std::move(rows)},
          {"is_chart", table.is_chart}};
}

// A line without a label that follows a table is a remark of the table.
const Figure* remark_at(const Section& section, std::size_t part) {
  const auto* const figure = std::get_if<Figure>(&section.parts[part].content);
  if (part == 0 || figure == nullptr || !figure->label.empty() || !figure->key.empty()) return nullptr;
  const bool is_behind =
      std::holds_alternative<Table>(section.parts[part - 1].content) || remark_at(section, part - 1) != nullptr;
  return is_behind ? figure : nullptr;
}

// Returns the remarks of the table that is this part, a line each.
std::string remarks_behind(const Section& section, std::size_t table) {
  std::string text;
  for (std::size_t part = table + 1; part < section.parts.size(); ++part) {
    const Figure* const remark = remark_at(section, part);
    if (remark == nullptr) break;
    text += (text.empty() ? "" : "\n") + remark->cell.text;
  }
  return text;
}

// Returns the lines of a section that people read, as a table without a header.
Json figures_table(const Section& section) {
  Json rows = Json::array();
  for (std::size_t part = 0; part < section.parts.size(); ++part) {
    const auto* const figure = std::get_if<Figure>(&section.parts[part].content);
    if (figure == nullptr || (figure->label.empty() && !figure->key.empty())) continue;
    if (remark_at(section, part) != nullptr) continue;
    const std::string text = figure->cell.text.empty() ? text_in(figure->unit, figure->cell.value) : figure->cell.text;
    rows.push_back({figure->label, text});
  }
  return {{"title", section.title.empty() ? "The whole run" : section.title},
          {"note", ""},
          {"columns", Json::array({Json::array({"", "text"}), Json::array({"", "text"})})},
          {"rows", std::move(rows)}};
}

// Adds the section's tables that have rows, and its figures where the page shows them.
void add_tables(Json& tables, const Section& section, bool shows_figures, const std::string& of) {
  if (Json figures = figures_table(section); shows_figures && !figures["rows"].empty())
    tables.push_back(std::move(figures));
  for (std::size_t part = 0; part < section.parts.size(); ++part) {
    if (const auto* const table = std::get_if<Table>(&section.parts[part].content)) {
      if (table->views.page && !table->rows.empty())
        tables.push_back(page_table(*table, of, remarks_behind(section, part)));
    } else if (const auto* const inner = std::get_if<Section>(&section.parts[part].content)) {
      add_tables(tables, *inner, shows_figures, inner->title.empty() ? of : inner->title);
    }
  }
}

}  // namespace

Json html_tables(const Section& answer, bool shows_figures) {
  Json tables = Json::array();
  add_tables(tables, answer, shows_figures, "");
  return tables;
}

}  // namespace cachalot::tools
