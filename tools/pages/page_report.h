// What a page shows: a verdict with its remedies, one or two runs with their memory over time, and tables.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// The sources of a page, which the build puts into the command (cmake/CachalotPages.cmake).
struct EmbeddedFile {
  std::string_view name;        // "page.css"
  std::string_view text;        // UTF-8
  std::string_view sha256_hex;  // of the text
};

std::span<const EmbeddedFile> embedded_files();  // in the order in which a page has them

struct PageRemedy {
  std::string title;     // "Use expandable segments"
  std::string evidence;  // "7.94 GiB instead of 19.30 GiB, by replay"
  std::string setting;   // the line to set; may be empty
};

struct PageVerdict {
  std::string headline;                 // empty: the page has no verdict
  std::vector<std::string> paragraphs;  // plain text
  std::vector<PageRemedy> remedies;
};

// One device of one history. Both must live until the page is written.
struct PageRun {
  const History* history = nullptr;
  const DeviceHistory* device = nullptr;
  std::string name;      // "before.pickle"
  bool is_host = false;  // pinned host memory
};

struct PageTable {
  enum class Kind : std::uint8_t { text, bytes, growth, count, number };  // growth: bytes that may be negative
  struct Column {
    std::string title;
    Kind kind = Kind::text;
  };

  std::string title;
  std::string note;  // below the title; may be empty
  std::vector<Column> columns;
  std::vector<std::vector<nlohmann::ordered_json>> rows;  // a cell is a text, a number or null
};

struct PageReport {
  std::string title;    // "run.pickle"
  std::string command;  // "cachalot explain"
  PageVerdict verdict;
  std::vector<PageRun> runs;
  bool compares = false;  // two runs, shown beside each other
  std::vector<PageTable> tables;
};

// Adds each device of the history as a run, and of pinned host memory as well. The history must live until the page is written.
void add_runs(PageReport& report, const History& history);

// Writes pages: one HTML file each, which a browser shows without a network, from a disk or from a mail.

// Returns the page. No text of the report is in the HTML itself: all of it is data, deflated and in base64, and the scripts set
// it as text. The page's Content-Security-Policy allows its own scripts and styles, by their hashes, and no request at all.
std::string html_page(const PageReport& report, const CategoryRules& rules);

// Writes the page to a file, as a whole or not at all. Throws InvalidArgument, which names the path, when it cannot be written.
void write_page(const std::string& path, const PageReport& report, const CategoryRules& rules);

}  // namespace cachalot::tools
