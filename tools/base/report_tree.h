// A Report is the answer of a command, told once: a tree of sections with figures, tables and notes. It is shown as text for
// people, as JSON for programs, and as a page for a browser (tools/output/html_report.h). A figure that is added to a report
// is in all three.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tools/base/text_layout.h"

namespace cachalot::tools {

using Json = nlohmann::ordered_json;

// The unit in which people read a value. A growth is of bytes, and may be negative; a part is of 1; a time is in seconds of
// Unix time.
enum class Unit : std::uint8_t { text, bytes, growth, count, number, part, time };

// Returns the value in its unit: "1.50 GiB", "+12.00 MiB", "1,200", "12.3 %"; "" for null.
std::string text_in(Unit unit, const Json& value);

// The views that have a part of a report.
struct Views {
  bool text = true;
  bool json = true;
  bool page = true;
};
inline constexpr Views kTextAlone{.text = true, .json = false, .page = false};
inline constexpr Views kJsonAlone{.text = false, .json = true, .page = false};
inline constexpr Views kPageAlone{.text = false, .json = false, .page = true};
inline constexpr Views kForPeople{.text = true, .json = false, .page = true};
inline constexpr Views kNotOnPage{.text = true, .json = true, .page = false};
inline constexpr Views kNotInText{.text = false, .json = true, .page = true};

// The colour of a value on a terminal.
enum class Mood : std::uint8_t { plain, good, bad, faint };

struct Cell;

// A value that JSON can have.
template <typename Value>
concept CellValue = !std::same_as<Value, Cell> && std::constructible_from<Json, Value>;

// A value of a figure or of a table's row.
struct Cell {
  Json value;          // for programs
  std::string text{};  // for people; "": the value in its unit
  Mood mood = Mood::plain;

  Cell() = default;
  Cell(Json of_programs, std::string of_people, Mood of_text = Mood::plain)
      : value(std::move(of_programs)), text(std::move(of_people)), mood(of_text) {}
  template <CellValue Value>
  Cell(Value shown) : value(std::move(shown)) {}  // NOLINT(google-explicit-constructor)
};

// A value under a name: a line of text, a member of a JSON object.
struct Figure {
  std::string key{};    // of JSON; "": it has none
  std::string label{};  // for people; "" with a key: they do not see it
  Cell cell{};
  Unit unit = Unit::text;
  bool is_answer = false;   // the label is bold, and a long text has several lines
  bool is_verdict = false;  // pages begin with it
};

struct Column {
  std::string key{};    // of JSON; "": it has none
  std::string title{};  // for people; "": they do not see it, unless the table has no header
  Unit unit = Unit::text;
  std::size_t width = 0;  // of text, at least
  bool is_left = false;   // aligned at its left, as the last column is if it is text
  std::string unknown{};  // the text for people in place of ""
  Views views{};
  std::string page_title{};       // of pages, in place of the title; "": that
  bool has_text_on_page = false;  // pages show the texts of its numbers, too: "64+"
};

// Returns a column that people do not see.
Column hidden_column(std::string key);

// Rows of values. Tables without rows are not shown to people.
struct Table {
  std::string key{};    // of JSON's array of objects
  std::string title{};  // of pages
  std::string note{};   // of pages, below the title; may be empty
  std::vector<Column> columns{};
  std::string heading{};   // of text, the line before the header
  std::string label{};     // of text, in the indent of the first line
  bool has_header = true;  // in text
  bool is_apart = false;   // in text, behind an empty line
  bool is_wide = false;    // in text, with two spaces between all columns
  bool is_chart = false;   // on pages, its columns of bytes are drawn over the first column, of times
  std::size_t indent = 2;  // of text
  Views views{};
  std::vector<std::vector<Cell>> rows{};
  // The rows of text and JSON; nullopt: all. Pages have all.
  std::optional<std::vector<std::size_t>> shown{};
  std::size_t most_in_text = std::numeric_limits<std::size_t>::max();  // of these rows
  std::string rest{};                                                  // of text, the line behind the rows
  std::vector<std::string> lines_below{};  // of text, by row: lines behind it, each ended by a newline; empty: none

  // Shows the first rows alone: `rest` says how many more there are, of "{} more".
  void show_first(std::size_t most, std::string_view more = "and {} more");
};

// A paragraph for people.
struct Note {
  std::string text;
  bool is_bold = false;
  bool is_wrapped = true;
  Mood mood = Mood::plain;
  Views views = kTextAlone;
};

struct ReportPart;

// Parts in their order. JSON has the members of a section in the object around it, or in one of its own under the
// section's key, or, of a list, each section in it as an element of an array.
struct Section {
  enum class Shape : std::uint8_t { merged, object, list };

  std::string key;
  Shape shape = Shape::merged;
  std::string title;        // for people; may be empty
  std::size_t label_width;  // of its figures, in text
  std::vector<ReportPart> parts;

  explicit Section(std::string title_of_people = "", std::size_t width_of_labels = 24);

  // A part is a Figure, a Table, a Note or a Section.
  template <typename Part>
  Section& add(Part part) {
    parts.push_back({std::move(part)});
    return *this;
  }

  // Adds a figure of bytes, under `name` in JSON, that people read with `more` behind it.
  Section& add_bytes(std::string name, std::string label, std::uint64_t bytes, std::string_view more = "");
  // Adds a figure that people do not see.
  Section& add_value(std::string name, Json value);
  // Adds a line that programs do not see.
  Section& add_line(std::string label, std::string text, Mood mood = Mood::plain);
  // Adds an empty line of text.
  Section& add_gap();
};

struct ReportPart {
  std::variant<Figure, Table, Note, Section> content;
};

// Returns an object, or an array, under a key.
Section object_of(std::string key);
Section list_of(std::string key);

// Returns lines for people.
std::string text_of(const Section& section, const Style& style);

// Returns the section's members for programs.
Json json_of(const Section& section);

}  // namespace cachalot::tools
