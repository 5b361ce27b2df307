// Finds the largest value of a parameter for which a program fits, for many sizes of memory and all policies, with few runs.
//
// A run on a device of unlimited memory gives the trace of a value, and replays of the trace answer for all sizes and
// policies. Between two values that were run, traces of one shape are computed as trace_shape.h does, with the deviations
// from a straight line that the runs beside them show: where both the raised and the lowered trace say the same, that is the
// answer, and otherwise the value is run. Between two runs of different shapes the lines of both sides are continued, and
// must say the same. Where there are not enough runs for a line, there are more of them.
//
// What fits for a value is assumed to fit for all smaller ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "simulator/context_costs.h"
#include "tools/policy_fit.h"
#include "tools/trace_shape.h"

namespace cachalot::tools {

// What a run with one value allocated.
struct Recording {
  // On one device, by one process. The frees of the trace are in order (with_ordered_frees).
  struct Part {
    Trace trace;
    std::size_t other_bytes = 0;  // of the device, which the allocator does not own; the context apart
  };

  std::vector<Part> parts;
  simulator::ContextCharge context;        // what the program's context and libraries took: of its devices, the most
  std::vector<std::string> architectures;  // that PyTorch has kernels for (card_table.h)
  bool is_too_large = false;               // it ran out of memory even so: it fits nowhere
};

bool have_one_shape(const Recording& one, const Recording& other);

// Whether the two have the same allocations and frees.
bool are_equal(const Recording& one, const Recording& other);

// Whether the two have one shape and differ by less than a thousandth in what lives at once.
bool are_nearly_equal(const Recording& one, const Recording& other);

// Not thread-safe.
class FitSearch {
 public:
  // The values are in rising order; there is one at least. `memory_bytes`: the sizes that are asked for, without contexts.
  FitSearch(std::vector<std::int64_t> values, std::set<std::size_t> memory_bytes);

  // Returns the indexes of the values that must be run next, and then added; empty once everything is known.
  std::vector<std::size_t> wanted();
  void add(std::size_t index, Recording recording);

  // Returns the index of the largest value that fits, and nullopt where none does. To be called when nothing is wanted.
  std::optional<std::size_t> largest(Policy policy, std::size_t memory_bytes);

 private:
  using Segment = std::pair<std::size_t, std::size_t>;  // two indexes that were run, and none between

  struct Question {
    Policy policy = Policy::pytorch;
    std::size_t memory_bytes = 0;
  };

  // Where the answer to a question lies, as far as is known.
  struct Bracket {
    std::optional<std::size_t> fits;       // the largest index that is known to fit
    std::size_t does_not = 0;              // the smallest that is known not to; the number of values if none is
    std::optional<std::size_t> undecided;  // between them, to be run

    bool is_closed() const { return !fits || does_not - *fits <= 1; }
  };

  // Two runs of one shape, and by how much sizes leave the straight line through them, by part.
  struct Line {
    std::size_t one = 0;
    std::size_t other = 0;
    std::vector<Deviations> deviations;
  };

  struct PartFit {
    PolicyFit fit;
    std::size_t other_bytes = 0;
  };
  // Traces that answer for an index, by part: one of a run, or for each line the lowered and the raised one.
  using Fits = std::vector<std::vector<PartFit>>;

  Bracket bracket_of(const Question& question);
  void bisect(Bracket& bracket, const Question& question);
  std::optional<bool> answer(std::size_t index, const Question& question);
  Fits& fits_of(std::size_t index);
  Fits make_fits(std::size_t index) const;
  static std::vector<PartFit> fits_of_parts(const std::vector<Recording::Part>& parts);

  Segment segment_around(std::size_t index) const;
  std::optional<std::size_t> run_beside(std::size_t index, int steps) const;
  std::vector<std::size_t> checks_in(const Segment& segment) const;

  std::vector<Line> lines_for(const Segment& segment) const;
  std::optional<Line> line_inside(const Segment& segment) const;
  std::optional<Line> line_of_side(std::size_t nearest, int direction) const;
  bool note_deviations_at(std::optional<std::size_t> low, std::size_t middle, std::optional<std::size_t> high,
                          std::vector<Deviations>& deviations) const;
  std::vector<Recording::Part> parts_on(const Line& line, std::size_t index) const;

  std::vector<std::int64_t> values_;
  std::set<std::size_t> memory_bytes_;
  std::map<std::size_t, Recording> recordings_;  // by index
  std::map<std::size_t, Fits> fits_;             // by index; emptied when it is large
  std::size_t held_events_ = 0;                  // of fits_
};

}  // namespace cachalot::tools
