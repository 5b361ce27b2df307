// The data of a page: one JSON value and the columns of numbers that it describes (ColumnWriter).
//
//   {"title", "command", "version", "verdict", "tables",
//    "texts": [text...],                              of frames, categories and streams
//    "runs": [{"name", "device", "gpu", "events", "first_time_us", "oom": [event...], "categories": [text...],
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
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "tools/analysis/categories.h"
#include "tools/pages/page_report.h"

namespace cachalot::tools {

// Columns of numbers for a page, in few bytes: a page decodes them to typed arrays, without parsing text.
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
// A run of more than kMostPageAllocations keeps the largest; the smaller ones are a curve alone, the columns `rest_event` and
// `rest_bytes`. Memory is a few hundred bytes an allocation while it works.
inline constexpr std::size_t kMostPageAllocations = 3'000'000;
std::string page_data(const PageReport& report, const CategoryRules& rules);

}  // namespace cachalot::tools
