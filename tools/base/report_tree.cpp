#include "tools/base/report_tree.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <numeric>

#include "base/bytes.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

std::string growth_text(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes < 0 ? -bytes : bytes);
  return (bytes == 0 ? "" : bytes > 0 ? "+" : "-") + format_bytes(size);
}

std::string in_mood(const Style& style, Mood mood, const std::string& text) {
  if (mood == Mood::faint) return style.faint(text);
  return mood == Mood::plain ? text : mood == Mood::good ? style.good(text) : style.bad(text);
}

std::string shown_text(const Cell& cell, Unit unit) {
  return cell.text.empty() ? text_in(unit, cell.value) : cell.text;
}

std::string time_text(double seconds) {
  const auto time = static_cast<std::time_t>(std::clamp(seconds, 0.0, 1e11));
  std::tm local{};
  localtime_r(&time, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

bool is_for_people(const Figure& figure) { return !figure.label.empty() || figure.key.empty(); }

// ---- text

// The answer alone has the colour: "NO" of "NO: out of memory".
std::string figure_line(const Figure& figure, std::size_t width, const Style& style) {
  std::string text = shown_text(figure.cell, figure.unit);
  const std::size_t end = std::min(text.find_first_of(":,"), text.size());
  text = in_mood(style, figure.cell.mood, text.substr(0, end)) + text.substr(end);
  if (!figure.is_answer) return labelled_line(figure.label, text, width);
  return "  " + style.bold(fmt::format("{:<{}}", figure.label, width)) + " " + wrapped(text, width + 3);
}

// A table as cells of text.
class TableLines {
 public:
  explicit TableLines(const Table& table) : table_(table) {
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      const Column& column = table.columns[i];
      if (column.views.text && (!column.title.empty() || !table.has_header)) columns_.push_back(i);
    }
    for (const std::size_t i : columns_) widths_.push_back(width_of(i));
  }

  std::string text(const Style& style) const {
    std::string text = table_.is_apart ? "\n" : "";
    if (!table_.heading.empty()) text += std::string(table_.indent, ' ') + table_.heading + "\n";
    if (table_.has_header) text += style.bold(header()) + "\n";
    for (const std::size_t row : rows()) {
      text += line_of(table_.rows[row], style) + "\n";
      if (!table_.lines_below.empty()) text += table_.lines_below[row];
    }
    if (!table_.rest.empty()) text += std::string(table_.indent, ' ') + table_.rest + "\n";
    if (!table_.label.empty()) text.replace(0, table_.label.size() + 2, "  " + table_.label);
    return text;
  }

 private:
  std::vector<std::size_t> rows() const {
    std::vector<std::size_t> rows(table_.rows.size());
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    if (table_.shown) rows = *table_.shown;
    rows.resize(std::min(rows.size(), table_.most_in_text));
    return rows;
  }

  std::string cell_text(const std::vector<Cell>& row, std::size_t column) const {
    std::string text = shown_text(row[column], table_.columns[column].unit);
    return text.empty() ? table_.columns[column].unknown : text;
  }

  // The last column has no width.
  std::size_t width_of(std::size_t column) const {
    if (column == columns_.back() && is_left(column)) return 0;
    std::size_t width = table_.columns[column].width;
    if (table_.has_header) width = std::max(width, table_.columns[column].title.size());
    for (const std::size_t row : rows()) width = std::max(width, cell_text(table_.rows[row], column).size());
    return width;
  }

  bool is_left(std::size_t column) const {
    return table_.columns[column].is_left || (column == columns_.back() && table_.columns[column].unit == Unit::text);
  }

  // Columns that are aligned at their left have two spaces before them, others one.
  template <typename TextOf>
  std::string joined(TextOf text_of) const {
    std::string line(table_.indent, ' ');
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += is_left(columns_[i]) || table_.is_wide ? "  " : " ";
      line += text_of(i);
    }
    while (line.ends_with(' ')) line.pop_back();
    return line;
  }

  std::string padded(std::size_t i, const std::string& text) const {
    return is_left(columns_[i]) ? fmt::format("{:<{}}", text, widths_[i]) : fmt::format("{:>{}}", text, widths_[i]);
  }

  std::string header() const {
    return joined([&](std::size_t i) { return padded(i, table_.columns[columns_[i]].title); });
  }

  // A cell is padded before it is coloured.
  std::string line_of(const std::vector<Cell>& row, const Style& style) const {
    return joined(
        [&](std::size_t i) { return in_mood(style, row[columns_[i]].mood, padded(i, cell_text(row, columns_[i]))); });
  }

  const Table& table_;
  std::vector<std::size_t> columns_;  // that text has
  std::vector<std::size_t> widths_;
};

std::string text_of(const Note& note, const Style& style) {
  if (!note.is_wrapped) return (note.is_bold ? style.bold(note.text) : in_mood(style, note.mood, note.text)) + "\n";
  std::string text = wrapped(note.text, 0);
  if (!note.is_bold) return text;
  text.pop_back();  // the newline is not bold
  return style.bold(text) + "\n";
}

// ---- JSON

Json json_of(const Table& table) {
  Json rows = Json::array();
  const auto add = [&](const std::vector<Cell>& row) {
    Json object = Json::object();
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      const Column& column = table.columns[i];
      if (!column.key.empty() && column.views.json) object[column.key] = row[i].value;
    }
    rows.push_back(std::move(object));
  };
  if (table.shown) {
    for (const std::size_t i : *table.shown) add(table.rows[i]);
  } else {
    std::ranges::for_each(table.rows, add);
  }
  return rows;
}

void add_to(Json& json, const ReportPart& part);

Json list_json(const Section& section) {
  Json list = Json::array();
  for (const ReportPart& part : section.parts) {
    if (const auto* const element = std::get_if<Section>(&part.content)) list.push_back(json_of(*element));
  }
  return list;
}

void add_to(Json& json, const Section& section) {
  if (section.shape == Section::Shape::list) {
    json[section.key] = list_json(section);
  } else if (section.shape == Section::Shape::object) {
    json[section.key] = json_of(section);
  } else {
    for (const ReportPart& part : section.parts) add_to(json, part);
  }
}

void add_to(Json& json, const ReportPart& part) {
  if (const auto* const figure = std::get_if<Figure>(&part.content)) {
    if (!figure->key.empty()) json[figure->key] = figure->cell.value;
  } else if (const auto* const table = std::get_if<Table>(&part.content)) {
    if (!table->key.empty() && table->views.json) json[table->key] = json_of(*table);
  } else if (const auto* const section = std::get_if<Section>(&part.content)) {
    add_to(json, *section);
  }
}

}  // namespace

std::string text_in(Unit unit, const Json& value) {
  if (value.is_null()) return "";
  switch (unit) {
    case Unit::bytes:
      return format_bytes(value.get<std::size_t>());
    case Unit::growth:
      return growth_text(value.get<std::int64_t>());
    case Unit::count:
      return with_commas(value.get<std::uint64_t>());
    case Unit::part:
      return percent_text(value.get<double>());
    case Unit::time:
      return time_text(value.get<double>());
    case Unit::number:
      return fmt::format("{}", value.get<double>());
    default:
      return value.is_string() ? printable(value.get_ref<const std::string&>()) : value.dump();
  }
}

void Table::show_first(std::size_t most, std::string_view more) {
  if (rows.size() <= most) return;
  shown.emplace(most);
  std::iota(shown->begin(), shown->end(), std::size_t{0});
  rest = fmt::format(fmt::runtime(more), with_commas(rows.size() - most));
}

Section::Section(std::string title_of_people, std::size_t width_of_labels)
    : title(std::move(title_of_people)), label_width(width_of_labels) {}

Section& Section::add_bytes(std::string name, std::string label, std::uint64_t bytes, std::string_view more) {
  return add(Figure{.key = std::move(name),
                    .label = std::move(label),
                    .cell = {bytes, fmt::format("{}{}", format_bytes(bytes), more)},
                    .unit = Unit::bytes});
}

Section& Section::add_value(std::string name, Json value) {
  return add(Figure{.key = std::move(name), .label = "", .cell = {std::move(value), ""}});
}

Section& Section::add_line(std::string label, std::string text, Mood mood) {
  return add(Figure{.key = "", .label = std::move(label), .cell = {nullptr, std::move(text), mood}});
}

std::string text_of(const Section& section, const Style& style) {
  std::string text = section.title.empty() ? "" : style.bold(section.title) + "\n";
  for (const ReportPart& part : section.parts) {
    if (const auto* const figure = std::get_if<Figure>(&part.content)) {
      if (is_for_people(*figure)) text += figure_line(*figure, section.label_width, style);
    } else if (const auto* const table = std::get_if<Table>(&part.content)) {
      if (table->views.text && !table->rows.empty()) text += TableLines(*table).text(style);
    } else if (const auto* const note = std::get_if<Note>(&part.content)) {
      if (note->views.text) text += text_of(*note, style);
    } else {
      text += text_of(std::get<Section>(part.content), style);
    }
  }
  return text;
}

Section& Section::add_gap() { return add(Note{.text = "", .is_wrapped = false}); }

Column hidden_column(std::string key) { return {.key = std::move(key), .views = kJsonAlone}; }

Section object_of(std::string key) {
  Section section;
  section.key = std::move(key);
  section.shape = Section::Shape::object;
  return section;
}

Section list_of(std::string key) {
  Section section;
  section.key = std::move(key);
  section.shape = Section::Shape::list;
  return section;
}

Json json_of(const Section& section) {
  Json json = Json::object();
  for (const ReportPart& part : section.parts) add_to(json, part);
  return json;
}

}  // namespace cachalot::tools
