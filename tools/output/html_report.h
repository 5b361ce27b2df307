// HTML reports: a verdict with its remedies, one or two runs with their memory over time, and tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/timeline.h"
#include "tools/base/report_tree.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// The sources of an HTML report, which the build puts into the command (tools/html/embed.cmake).
struct EmbeddedFile {
  std::string_view name;        // "report.css"
  std::string_view text;        // UTF-8
  std::string_view sha256_hex;  // of the text
};

std::span<const EmbeddedFile> embedded_files();  // in the order in which a report has them

struct HtmlRemedy {
  std::string title;     // "Use expandable segments"
  std::string evidence;  // "7.94 GiB instead of 19.30 GiB, by replay"
  std::string setting;   // the line to set; may be empty
};

struct HtmlVerdict {
  std::string headline;                 // empty: that of the answer, if it has one (Figure::is_verdict)
  std::vector<std::string> paragraphs;  // plain text
  std::vector<HtmlRemedy> remedies;
  bool is_bad = false;  // a limit is broken, or the program does not fit
};

// One device of one history, which must live until the report is written.
struct HtmlRun {
  const Timeline* timeline = nullptr;
  std::string name;      // "before.pickle"
  bool is_host = false;  // pinned host memory
};

struct HtmlReport {
  std::string title;    // "run.pickle"
  std::string command;  // "cachalot explain"
  HtmlVerdict verdict{};
  std::vector<HtmlRun> runs{};
  bool compares = false;       // two runs, shown beside each other
  bool shows_figures = false;  // the answer's figures as well: the runs have none of their own, or others
  Section answer{};            // its tables are shown
};

// Adds each timeline as a run. They must live until the report is written.
void add_runs(HtmlReport& report, const Timelines& timelines);

// Writes reports: one HTML file each, which a browser shows without a network, from a disk or from a mail.

// Returns the HTML of the report. No text of the report is in the HTML itself: all of it is data, deflated and in base64, and the scripts set
// it as text. The report's Content-Security-Policy allows its own scripts and styles, by their hashes, and no request at all.
std::string html_of(const HtmlReport& report, const CategoryRules& rules);

// Writes the report to a file, as a whole or not at all. Throws InvalidArgument, which names the path, when it cannot be written.
void write_html_report(const std::string& path, const HtmlReport& report, const CategoryRules& rules);

// The data of a report: one JSON value and the columns of numbers that it describes (ColumnWriter).
//
//   {"title", "command", "version", "verdict", "tables",
//    "texts": [text...],                              of frames, categories and streams
//    "runs": [{"name", "device", "gpu", "total_bytes", "events", "time_step", "has_times", "ooms": [[event, bytes]...], "categories": [text...],
//              "streams": [text...], "pools": [text...], "stages": [[name, time_us, begins]...], "layouts": [name...],
//              "left_out", "prefix"}],
//    "columns": directory}
//
// A run's columns, each behind the run's prefix: `times` (of events); of allocations `begin` (0: before the history, else 1 +
// event), `length` (0: never freed, else events to its free), `bytes`, `stack`, `category`, `stream` and `pool`; of stacks
// `node` (1 + the innermost call; 0: no stack); of calls `parent` (0: none, else 1 + node; always an earlier one) and `frame`;
// of frames `file`, `function` (texts), `line` and `origin`; and of each layout i `i.address`, `i.block` by allocation,
// of its ranges `i.range_begin`, `i.range_end` (as 1 + event; 0: before, or never), `i.range_address`, `i.range_bytes`, and of
// the bytes that it holds `i.held_event` and `i.held_bytes`; without rows the ranges are all that it holds.

// Returns "tables" of the data, [{"title", "note", "columns": [[title, kind]...], "rows": [[cell...]...]}...]: those of the answer
// that pages show and that have rows; with `shows_figures` before the tables of a section its figures, as a table whose columns
// have no titles. Lines without a label that follow a table are its note.
Json html_tables(const Section& answer, bool shows_figures);

// Columns of numbers for a report, in few bytes: the report decodes them to typed arrays, without parsing text.
//
// A number is a LEB128: seven bits a byte, lowest first, the highest bit set in all bytes but the last. Three encodings:
//   plain    the numbers themselves
//   deltas   zigzag differences to the number before, the first to 0: for what mostly grows
//   ranked   numbers of the rows of a second column, "<name>.values", where the most frequent value comes first
class ColumnWriter {
 public:
  void add_plain(std::string_view name, std::span<const std::uint64_t> values);
  void add_deltas(std::string_view name, std::span<const std::uint64_t> values);
  void add_ranked(std::string_view name, std::span<const std::uint64_t> values);

  // Returns the object {name: [encoding, rows, first byte]} of all columns.
  const nlohmann::ordered_json& directory() const { return directory_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view name, std::string_view encoding, std::size_t rows);
  void put(std::uint64_t number);

  nlohmann::ordered_json directory_ = nlohmann::ordered_json::object();
  std::string bytes_;
};

// The whole as bytes: the length of the JSON as 8 hexadecimal digits, the JSON, the columns.
//
// A run of more than kMostHtmlAllocations keeps the largest; the smaller ones are a curve alone, the columns `rest_event` and
// `rest_bytes`. Memory is a few hundred bytes an allocation while it works.
inline constexpr std::size_t kMostHtmlAllocations = 3'000'000;
std::string html_data(const HtmlReport& report, const CategoryRules& rules);

}  // namespace cachalot::tools
