// Compares the growth between two runs of a program, two of its ranks, or two of its commits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/base/report_tree.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// A FrameMatching maps the code of one run of a program to that of another, although files lie elsewhere and lines have
// moved.
//
//   files      the same path; else the same file name, with the longest common end of the two paths first
//   functions  the same name in such files
//   lines      in such functions: moved by as much as makes most lines of one those of the other, by the least of equals;
//              then, where as many lines are left between two that belong together, in their order
class FrameMatching {
 public:
  // The frames are those that are to be matched. Takes a time of at most a million steps for each file name and function
  // beyond the number of frames: where there are more pairs than that, equal paths and lines alone are matched.
  FrameMatching(const History& a, std::span<const FrameId> frames_a, const History& b,
                std::span<const FrameId> frames_b);

  // Returns the frame of `b`, or nullopt for code that is not in it.
  std::optional<FrameId> in_b(FrameId frame_of_a) const;

 private:
  std::map<FrameId, FrameId> matched_;
};

// A pair of what the first run, `a`, has and the second, `b`.
struct Pair {
  std::uint64_t a = 0;
  std::uint64_t b = 0;

  std::int64_t growth() const { return static_cast<std::int64_t>(b) - static_cast<std::int64_t>(a); }
};

// Live memory at the compared moments under one name: a category, a line, a module, a pool or a stage.
struct DifferenceRow {
  std::string name;
  std::string was;  // the name in the first run, where it is another: the line has moved
  Pair bytes;       // requested
  Pair count;       // allocations

  // Returns "new", "gone", "grown", "shrunk" or "same".
  const char* change() const;
};

// Each live allocation is in one row of each list, so that the growths of a list add up to that of the whole. Rows are sorted
// by growth, the largest first.
struct DifferenceList {
  std::string name;  // "category", "line", "module", "pool", "stage"
  std::vector<DifferenceRow> rows;
};

// A part of the time of both runs, and the most requested bytes in it.
struct DifferencePart {
  double begin = 0;  // a share of the events, or the number of a stage, from 0
  double end = 0;
  Pair peak_bytes;
};

struct DifferenceMoment {
  std::size_t event = 0;  // the number of events that have happened
  std::size_t events = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t reserved_bytes = 0;
};

struct DeviceDifference {
  std::array<std::optional<int>, 2> device;  // in each run; nullopt where the run lacks it
  std::array<DifferenceMoment, 2> moment;
  std::vector<DifferenceList> lists;
  std::string aligned_by;  // "events", or a stage: "ProfilerStep#*"
  std::vector<DifferencePart> parts;

  std::int64_t growth() const { return Pair{moment[0].requested_bytes, moment[1].requested_bytes}.growth(); }
};

struct Difference {
  std::array<std::string, 2> paths;
  std::string at;
  std::vector<DeviceDifference> devices;
};

struct DifferenceOptions {
  std::string at = "peak";  // Timeline::asked_moment
  Frames frames = Frames::own;
  std::size_t parts = 20;  // of the time
};

// Compares the devices of the same number; where each run has one device, these two. Throws InvalidArgument as asked_moment
// does, and where a run has no device.
Difference difference_of(const Timelines& a, const Timelines& b, const CategoryRules& rules,
                         const DifferenceOptions& options);

// Returns the name with `*` in the place of each number: "step *" of "step 12".
std::string without_numbers(std::string_view name);

// Returns the difference as a part of a report. Text and JSON have of each list the `top` rows that changed most, and the sum
// of the others; docs/tools/json.md has the keys.
Section report_of(const Difference& difference, std::size_t top);

}  // namespace cachalot::tools
