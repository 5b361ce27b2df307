// Finds the largest value of the last of several parameters for which a program fits, for each combination of the others.
//
// Each combination is a row, with a search of its own (fit_search.h). Where other parameters are ranges, what fits with some
// values is assumed to fit with smaller ones. So an answer of one row bounds those of rows with smaller and with larger
// values: rows at the ends of a range are searched first, then one between them, and so on, and only what these leave open. A
// value of a row between others is computed where the allocations of the rows beside it are of one shape, as between two runs
// of a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/fit_search.h"

namespace cachalot::tools {

// A parameter: {name} in the words of the program stands for its value.
struct Vary {
  std::string name;
  std::vector<std::int64_t> values;  // in rising order
  bool is_range = false;             // given as FIRST..LAST
};

// Not thread-safe.
class FitFrontier {
 public:
  struct Run {
    std::size_t row = 0;
    std::size_t index = 0;  // of a value of the last parameter
  };

  // `memory_bytes`: the sizes that are asked for, without contexts. Throws InvalidArgument where there are too many rows.
  FitFrontier(std::vector<Vary> vary, const std::set<std::size_t>& memory_bytes);

  // Returns what must be run next, and then added; empty once everything is known.
  std::vector<Run> wanted();
  void add(const Run& run, Recording recording);

  std::size_t row_count() const { return rows_.size(); }
  // Returns the values of all parameters but the last.
  std::vector<std::int64_t> values_of(std::size_t row) const;

  // Returns the index of the largest value that fits, and nullopt where none does. To be called when nothing is wanted.
  std::optional<std::size_t> largest(std::size_t row, const FitQuestion& question);
  // Whether the largest value is smaller, with larger values of any range. To be called when nothing is wanted.
  bool is_corner(std::size_t row, const FitQuestion& question);
  // Whether all ranges have their first value.
  bool begins_ranges(std::size_t row) const;
  // Whether a parameter other than the last is a range of several values.
  bool has_ranges() const { return line_axis_.has_value(); }

 private:
  // Of a parameter other than the last. The last axis is the innermost.
  struct Axis {
    std::vector<std::int64_t> values;
    std::vector<int> levels;  // of a position: 0 for the ends of a range, 1 between them, and so on; of a list: 0
    bool is_range = false;
    std::size_t stride = 1;  // from a row to the one at the next position
  };

  struct Row {
    FitSearch search;
    int level = 0;  // the largest of its positions
  };

  // What a row beside another allocates with some value.
  struct Beside {
    std::int64_t at = 0;  // the value of the line's axis
    Computed computed;
  };

  std::size_t position(std::size_t row, const Axis& axis) const { return row / axis.stride % axis.values.size(); }
  bool is_at_most(std::size_t row, std::size_t other) const;
  void narrow_by_other_rows(std::size_t row);
  void narrow_by_lines(std::size_t row);
  std::optional<Computed> computed_between_rows(std::size_t row, std::size_t index) const;
  static bool note_deviations_of(const std::vector<Beside>& rows, std::size_t i, std::vector<Deviations>& deviations);
  std::vector<Beside> beside(std::size_t row, std::size_t index, int direction) const;

  std::vector<Axis> axes_;
  std::optional<std::size_t> line_axis_;  // on which rows are computed: the range with most values
  std::vector<Row> rows_;
  int level_ = 0;  // rows of smaller levels are known
  int last_level_ = 0;
  bool is_new_level_ = true;
};

}  // namespace cachalot::tools
