// Finds the largest values of a program's parameters for which it fits, for each GPU and allocator policy.
//
// The search finds the largest value of a parameter for which a program fits, for many sizes of memory and all policies, with few runs.
//
// A run on a device of unlimited memory gives the trace of a value, and replays of the trace answer for all sizes and
// policies. Between two values that were run, traces of one shape are computed as on_line does, with the deviations
// from a straight line that the runs beside them show: where both the raised and the lowered trace say the same, that is the
// answer, and otherwise the value is run. Between two runs of different shapes the lines of both sides are continued, and
// must say the same. Where there are not enough runs for a line, there are more of them.
//
// What fits for a value is assumed to fit for all smaller ones.
//
// Where more is known of an answer, as from other searches (FitFrontier), only the values that it leaves open are run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "simulator/models/context_costs.h"
#include "tools/replay/policies.h"
#include "tools/replay/trace_reader.h"
#include "tools/simulation/card_table.h"
#include "tools/simulation/simulation.h"

namespace cachalot::tools {

// Traces of one program for several values of a parameter: where only sizes differ, and grow about linearly with the value,
// the trace for a value between two others is known without a run.

// Returns the trace with the frees of each unbroken row of frees in the order of their allocations. Programs free in
// another order in each run where that follows from addresses, as the order in a hash table does. A trace that stays in its
// file is returned as it is.
Trace with_ordered_frees(const Trace& trace);

// Returns whether both make and free the same number of allocations, in the same order and on the same streams, of any
// sizes. False of traces that stay in files.
bool have_one_shape(const Trace& one, const Trace& other);

// A trace, and the value of the parameter for which it was recorded.
struct TraceAt {
  const Trace& trace;
  std::int64_t value = 0;
};

// Returns the trace for a value, by two traces of one shape: each size lies on the straight line through the two sizes, to
// the nearest byte; a size below zero is zero.
Trace on_line(const TraceAt& low, const TraceAt& high, std::int64_t value);

// Bytes by which each event's size may be another than computed; 0 for frees.
using Deviations = std::vector<std::uint64_t>;

// Raises each deviation to the difference of the two traces' sizes. They are of one shape, and so are the deviations.
void note_deviations(Deviations& deviations, const Trace& computed, const Trace& real);

// Returns the trace with each size raised, or lowered, by twice its deviation: runs show the deviations of some values.
Trace raised(Trace trace, const Deviations& deviations);
Trace lowered(Trace trace, const Deviations& deviations);

// The allocations of a run with one value.
struct Recording {
  // On one device, by one process. The frees of the trace are in order (with_ordered_frees).
  struct Part {
    Trace trace;
    std::size_t other_bytes = 0;  // of the device, which the allocator does not own; the context apart
  };

  std::vector<Part> parts;
  simulator::ContextCharge context;        // the memory of the program's context and libraries: the most of its devices
  std::vector<std::string> architectures;  // that PyTorch has kernels for (card_table.h)
  bool is_too_large = false;               // it ran out of memory even so: it fits nowhere
};

bool have_one_shape(const Recording& one, const Recording& other);

// Returns whether the two have the same allocations and frees.
bool are_equal(const Recording& one, const Recording& other);

// Returns whether the two have one shape and differ by less than a thousandth in the memory that lives at once.
bool are_nearly_equal(const Recording& one, const Recording& other);

// The question for a value: whether it fits into `memory_bytes`, without the context.
struct FitQuestion {
  Policy::Heap heap = Policy::Heap::segments;
  std::size_t memory_bytes = 0;

  auto operator<=>(const FitQuestion&) const = default;  // NOLINT(modernize-use-nullptr): not one of ours
};

// Between which indexes the largest one lies that fits.
struct FitBounds {
  std::optional<std::size_t> fits;  // the largest that is known to fit
  std::size_t does_not = 0;         // the smallest that is known not to; the number of values if none is

  std::size_t first_open() const { return fits ? *fits + 1 : 0; }
  bool is_closed() const { return first_open() >= does_not; }
  // Returns the middle of the open indexes.
  std::size_t middle() const { return first_open() + (does_not - 1 - first_open()) / 2; }
  // Asks in the middle until all is known, or until an index for which there is no answer, which it returns.
  std::optional<std::size_t> bisect(const std::function<std::optional<bool>(std::size_t)>& answer);
};

// The allocations of a value, as far as they are known: each size up to a deviation, by part.
struct Computed {
  Recording recording;
  std::vector<Deviations> deviations;
};

// Raises the deviations to the differences of sizes of two recordings of one shape.
void note_deviations(std::vector<Deviations>& deviations, const Recording& computed, const Recording& real);

// Returns the recording for a value, by those of two others of one shape (on_line of traces).
Recording on_line(const Recording& one, std::int64_t at_one, const Recording& other, std::int64_t at_other,
                  std::int64_t value);

// Traces that answer for a value. Where they do not say the same, nothing is known.
class FitAnswers {
 public:
  FitAnswers() = default;

  // Adds a recording.
  void add(const Recording& recording);
  // Adds a computed trace, once with all sizes lowered and once with all raised.
  void add(const Computed& computed);

  // Requires at least one trace.
  std::optional<bool> answer(const FitQuestion& question);
  std::size_t held_events() const { return held_events_; }

 private:
  struct PartFit {
    MemoryNeed need;
    std::size_t other_bytes = 0;
  };

  static bool all_fit(std::vector<PartFit>& parts, const FitQuestion& question);

  std::vector<std::vector<PartFit>> traces_;  // by part
  std::size_t held_events_ = 0;
};

// Not thread-safe.
class FitSearch {
 public:
  // The values are in rising order; there is one at least. `memory_bytes`: the sizes that are asked for, without contexts.
  FitSearch(std::vector<std::int64_t> values, const std::set<std::size_t>& memory_bytes);

  // Returns the indexes of the values that must be run next, and then added; empty once everything is known.
  std::vector<std::size_t> wanted();
  void add(std::size_t index, Recording recording);

  // Returns the index of the largest value that fits, and nullopt where none does. To be called when nothing is wanted.
  std::optional<std::size_t> largest(const FitQuestion& question) { return bounds(question).fits; }

  std::size_t value_count() const { return values_.size(); }
  const std::vector<FitQuestion>& questions() const { return questions_; }
  // Returns what is known of the answer without runs that are yet to come.
  FitBounds bounds(const FitQuestion& question);
  // Tells what is known of the answer otherwise.
  void narrow(const FitQuestion& question, const FitBounds& bounds);
  // Keeps the answers, and frees their sources except the runs. To be called when no further answer is wanted.
  void close();
  // Returns what an index allocates that was run or lies between two runs of one shape; nullopt for others.
  std::optional<Computed> computed(std::size_t index) const;

 private:
  using AnswersByIndex = std::map<std::size_t, FitAnswers>;
  using Segment = std::pair<std::size_t, std::size_t>;  // two indexes that were run, and none between

  struct Bracket : FitBounds {
    std::optional<std::size_t> undecided;  // between them, to be run
  };

  // Two runs of one shape, and by how much sizes leave the straight line through them, by part.
  struct Line {
    std::size_t one = 0;
    std::size_t other = 0;
    std::vector<Deviations> deviations;
  };

  Bracket bracket_of(const FitQuestion& question);
  std::optional<bool> answer(std::size_t index, const FitQuestion& question);
  FitAnswers make_answers(std::size_t index) const;
  AnswersByIndex::iterator forget(AnswersByIndex::iterator at);

  bool is_between_runs(std::size_t index) const;
  Segment segment_around(std::size_t index) const;
  std::optional<std::size_t> run_beside(std::size_t index, int steps) const;
  std::vector<std::size_t> checks_in(const Segment& segment) const;

  std::vector<Line> lines_for(const Segment& segment) const;
  std::optional<Line> line_inside(const Segment& segment) const;
  std::optional<Line> line_of_side(std::size_t nearest, int direction) const;
  bool note_deviations_at(std::optional<std::size_t> low, std::size_t middle, std::optional<std::size_t> high,
                          std::vector<Deviations>& deviations) const;
  Recording on(const Line& line, std::size_t index) const;

  std::vector<std::int64_t> values_;
  std::vector<FitQuestion> questions_;
  std::map<FitQuestion, FitBounds> known_;       // without runs
  std::map<std::size_t, Recording> recordings_;  // by index
  AnswersByIndex answers_;                       // emptied when it is large
  std::size_t held_events_ = 0;                  // of answers_
};

// Finds the largest value of the last of several parameters for which a program fits, for each combination of the others.
//
// Each combination is a row, with a search of its own (FitSearch). Where other parameters are ranges, what fits with some
// values is assumed to fit with smaller ones. So an answer of one row bounds those of rows with smaller and with larger
// values: rows at the ends of a range are searched first, then one between them, and so on, and only what these leave open. A
// value of a row between others is computed where the allocations of the rows beside it are of one shape, as between two runs
// of a row.

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
  // Returns whether the largest value is smaller with larger values of any range. To be called when no further answer
  // is wanted.
  bool is_corner(std::size_t row, const FitQuestion& question);
  // Returns whether all ranges have their first value.
  bool begins_ranges(std::size_t row) const;
  // Returns whether a parameter other than the last is a range of several values.
  bool has_ranges() const { return line_axis_.has_value(); }

 private:
  // An Axis has the values of a parameter other than the last. The last axis is the innermost.
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

  // The allocations of a neighbouring row with some value.
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

// Reads "batch=1..256" or "batch=1,2,4,8". Throws InvalidArgument.
Vary parse_vary(std::string_view text);

struct FitOptions {
  SimulationOptions run;   // of each run: the program, and all but its GPU and memory
  std::vector<Vary> vary;  // for each combination of the others' values, the largest value of the last is found
  std::vector<Card> cards;
  int jobs = 1;                               // runs at the same time
  std::function<void(double done)> progress;  // 0 to 1
};

struct FitRow {
  Card card;
  std::vector<std::int64_t> fixed;                              // the values of all parameters but the last
  std::array<std::optional<std::int64_t>, kHeapCount> largest;  // of the last; nullopt: none fits
};

struct FitReport {
  std::vector<Vary> vary;
  std::vector<Policy::Heap> heaps = {kHeaps.begin(), kHeaps.end()};  // of FitRow::largest those that are known
  // The program sizes itself to the memory of a GPU. Each answer is of a run there, with the program's own policy alone.
  bool sizes_itself = false;
  std::size_t runs = 0;
  bool is_exact = true;  // in each run the replay held what the run held
  // The smallest card first, and of a card in the order of the fixed values. Where some of these are ranges, a card has only
  // rows that are corners with one policy: the largest value is smaller with larger ones of a range.
  std::vector<FitRow> rows;
  std::vector<Card> left_out;  // PyTorch has no kernels for these
};

// Throws InvalidArgument, also where a run did not end well: then nothing is known of its values. A program that sizes itself to
// the GPU runs on each of them, at most kMostOwnRuns; there a run that fails is one that does not fit, if another one ends well.
inline constexpr std::size_t kMostOwnRuns = 16;
FitReport fit(const FitOptions& options);

}  // namespace cachalot::tools
