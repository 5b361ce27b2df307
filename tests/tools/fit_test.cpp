// The largest parameters with which programs fit.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"
#include "tools/simulation/fit.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;

Trace trace_in_text(const std::string& text) {
  const TemporaryFile file;
  std::ofstream(file.path()) << text;
  return read_trace(file.path());
}

TEST(TraceShape, IsTheSameWhateverTheOrderInWhichARowOfAllocationsIsFreed) {
  const Trace one = with_ordered_frees(trace_in_text("a,0,512,0\na,1,512,7\nf,0\nf,1\na,2,512,7\na,3,1,0\n"));
  const Trace other = with_ordered_frees(trace_in_text("a,0,512,0\na,1,1024,7\nf,1\nf,0\na,2,2048,7\na,3,1,0\n"));
  EXPECT_TRUE(have_one_shape(one, other));
  EXPECT_EQ(other.events[4].bytes, 2048u);
  EXPECT_FALSE(
      have_one_shape(one, with_ordered_frees(trace_in_text("a,0,512,0\na,1,512,7\nf,0\na,2,512,7\nf,1\na,3,1,0\n"))));
  EXPECT_FALSE(
      have_one_shape(one, with_ordered_frees(trace_in_text("a,0,512,0\na,1,512,0\nf,0\nf,1\na,2,512,0\na,3,1,0\n"))));
}

TEST(TraceShape, HasSizesOnALineBetweenTwoValues) {
  const Trace low = trace_in_text("a,0,100,0\na,1,512,0\nf,1\n");
  const Trace high = trace_in_text("a,0,200,0\na,1,512,0\nf,1\n");
  const Trace middle = on_line({.trace = low, .value = 1}, {.trace = high, .value = 11}, 4);
  EXPECT_EQ(middle.events[0].bytes, 130u);
  EXPECT_EQ(middle.events[1].bytes, 512u);
  Deviations deviations(3);
  note_deviations(deviations, middle, trace_in_text("a,0,128,0\na,1,512,0\nf,1\n"));
  note_deviations(deviations, middle, trace_in_text("a,0,131,0\na,1,512,0\nf,1\n"));
  EXPECT_EQ(deviations, (Deviations{2, 0, 0}));
  EXPECT_EQ(raised(middle, deviations).events[0].bytes, 134u);
  EXPECT_EQ(lowered(middle, deviations).events[0].bytes, 126u);
  EXPECT_EQ(lowered(middle, {1000, 0, 0}).events[0].bytes, 0u);
}

// The sizes in KiB of what a program allocates with a value, in order; every third is freed at the end, and then the
// first of them is made once more.
using Program = std::function<std::vector<std::size_t>(std::int64_t value)>;

Trace trace_at(const Program& program, std::int64_t value) {
  std::string text;
  const std::vector<std::size_t> sizes = program(value);
  std::size_t made = 0;
  for (const std::size_t kib : sizes) text += fmt::format("a,{},{},0\n", made++, kib * kKiB);
  for (std::size_t i = 0; i < sizes.size(); i += 3) text += fmt::format("f,{}\n", i);
  return trace_in_text(text + fmt::format("a,{},{},0\n", made, sizes.front() * kKiB));
}

struct Found {
  std::vector<std::optional<std::size_t>> largest;  // for each memory and policy
  std::size_t runs = 0;
};

const std::set<std::size_t> kMemory = {50 * kMiB, 400 * kMiB, 700 * kMiB, 1000 * kMiB, 1900 * kMiB, 90000 * kMiB};

Found search(const Program& program, const std::vector<std::int64_t>& values,
             const std::set<std::size_t>& memory = kMemory) {
  FitSearch search(values, memory);
  Found found;
  for (auto wanted = search.wanted(); !wanted.empty(); wanted = search.wanted()) {
    for (const std::size_t index : wanted) {
      Recording recording;
      recording.parts.push_back({.trace = trace_at(program, values[index]), .other_bytes = 3 * kMiB});
      search.add(index, std::move(recording));
      ++found.runs;
    }
  }
  for (const std::size_t bytes : memory) {
    for (const Policy::Heap heap : kHeaps) found.largest.push_back(search.largest({heap, bytes}));
  }
  return found;
}

std::vector<std::optional<std::size_t>> try_all(const Program& program, const std::vector<std::int64_t>& values,
                                                const std::set<std::size_t>& memory = kMemory) {
  std::vector<std::optional<std::size_t>> largest(memory.size() * kHeapCount);
  for (std::size_t index = 0; index < values.size(); ++index) {
    MemoryNeed need(trace_at(program, values[index]));
    std::size_t question = 0;
    for (const std::size_t bytes : memory) {
      for (const Policy::Heap heap : kHeaps) {
        if (need.fits({.heap = heap}, bytes - 3 * kMiB)) largest[question] = index;
        ++question;
      }
    }
  }
  return largest;
}

std::vector<std::int64_t> up_to(std::int64_t last) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(last));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

void expect_all_found(const Program& program, const std::vector<std::int64_t>& values, std::size_t most_runs) {
  const Found found = search(program, values);
  EXPECT_EQ(found.largest, try_all(program, values));
  EXPECT_LE(found.runs, most_runs);
}

std::size_t times(std::int64_t value, std::size_t kib) { return static_cast<std::size_t>(value) * kib; }

TEST(FitSearch, NeedsFourRunsWhereSizesGrowLinearly) {
  expect_all_found(
      [](std::int64_t v) {
        return std::vector<std::size_t>{times(v, 1024), 9000, times(v, 3000), times(v, 100), 2000, times(v, 2048)};
      },
      up_to(256), 4);
}

TEST(FitSearch, RunsMoreWhereSizesGrowInSteps) {
  expect_all_found(
      [](std::int64_t v) {
        return std::vector<std::size_t>{times(v, 1024), 9000, times((v + 7) / 8 * 8, 3000), times(v / 5, 100) + 1};
      },
      up_to(256), 40);
}

TEST(FitSearch, RunsMoreWhereTheProgramDoesSomethingElseFromSomeValueOn) {
  expect_all_found(
      [](std::int64_t v) {
        std::vector<std::size_t> sizes = {times(v, 1024), 9000, times(v, 3000)};
        if (v >= 42) sizes.push_back(50000);
        if (v >= 200) sizes.push_back(700);
        return sizes;
      },
      up_to(256), 40);
}

TEST(FitSearch, TakesOneValueAndFewValues) {
  const Program program = [](std::int64_t v) { return std::vector<std::size_t>{times(v, 100000)}; };
  expect_all_found(program, {3}, 1);
  expect_all_found(program, {1, 9}, 2);
  expect_all_found(program, {1, 2, 4, 8, 16}, 4);
}

TEST(FitSearch, KnowsThatWhatRanOutOfMemoryFitsNowhere) {
  FitSearch search(up_to(9), {std::size_t{90000} * kMiB});
  const Program program = [](std::int64_t v) { return std::vector<std::size_t>{times(v, 100)}; };
  std::size_t runs = 0;
  for (auto wanted = search.wanted(); !wanted.empty(); wanted = search.wanted()) {
    for (const std::size_t index : wanted) {
      Recording recording;
      recording.is_too_large = index > 4;
      if (!recording.is_too_large) {
        recording.parts.push_back({.trace = trace_at(program, static_cast<std::int64_t>(index) + 1), .other_bytes = 0});
      }
      search.add(index, std::move(recording));
      ++runs;
    }
  }
  EXPECT_EQ(search.largest({Policy::Heap::segments, std::size_t{90000} * kMiB}), 4u);
  EXPECT_LE(runs, 9u);
}

// The sizes of what a program allocates with two values.
using WideProgram = std::function<std::vector<std::size_t>(std::int64_t outer, std::int64_t value)>;

Program with_outer(const WideProgram& program, std::int64_t outer) {
  return [&program, outer](std::int64_t value) { return program(outer, value); };
}

Vary range(const std::string& name, std::int64_t last) {
  return {.name = name, .values = up_to(last), .is_range = true};
}

const std::set<std::size_t> kFewMemory = {400 * kMiB, 1000 * kMiB};

// Searches all of a frontier. Returns the number of runs.
std::size_t run_all(FitFrontier& frontier, const WideProgram& program, const std::vector<std::int64_t>& values) {
  std::size_t runs = 0;
  for (auto wanted = frontier.wanted(); !wanted.empty(); wanted = frontier.wanted()) {
    for (const FitFrontier::Run& run : wanted) {
      Recording recording;
      recording.parts.push_back(
          {.trace = trace_at(with_outer(program, frontier.values_of(run.row).back()), values[run.index]),
           .other_bytes = 3 * kMiB});
      frontier.add(run, std::move(recording));
      ++runs;
    }
  }
  return runs;
}

void expect_all_rows_found(const WideProgram& program, const Vary& outer, const Vary& last, std::size_t most_runs) {
  FitFrontier frontier({outer, last}, kFewMemory);
  EXPECT_LE(run_all(frontier, program, last.values), most_runs);
  for (std::size_t row = 0; row < outer.values.size(); row += 3) {
    std::vector<std::optional<std::size_t>> largest;
    for (const std::size_t bytes : kFewMemory) {
      for (const Policy::Heap heap : kHeaps) largest.push_back(frontier.largest(row, {heap, bytes}));
    }
    ASSERT_EQ(largest, try_all(with_outer(program, outer.values[row]), last.values, kFewMemory)) << "in row " << row;
  }
}

std::vector<std::size_t> bilinear(std::int64_t outer, std::int64_t value) {
  return {times(outer * value, 700), 9000, times(outer, 3000), times(value, 100), 2000, times(outer * value, 150)};
}

TEST(FitFrontier, NeedsFewRunsWhereSizesGrowWithTheProductOfTwoParameters) {
  expect_all_rows_found(bilinear, range("seq", 40), range("batch", 30), 40);
}

TEST(FitFrontier, RunsMoreWhereSizesGrowWithTheSquareOfAParameter) {
  const WideProgram squares = [](std::int64_t outer, std::int64_t value) {
    return std::vector<std::size_t>{times(outer * value, 700), 9000, times(outer * outer * value, 20), 2000, 300};
  };
  expect_all_rows_found(squares, range("seq", 40), range("batch", 30), 100);
}

TEST(FitFrontier, RunsMoreWhereSizesGrowInStepsAndAllocationsChange) {
  const WideProgram steps = [](std::int64_t outer, std::int64_t value) {
    std::vector<std::size_t> sizes = {times((outer + 3) / 4 * 4 * value, 700), 9000, times(outer, 3000)};
    if (outer * value > 300) sizes.push_back(20000);
    return sizes;
  };
  expect_all_rows_found(steps, range("seq", 40), range("batch", 30), 110);
}

TEST(FitFrontier, RunsNoRowBetweenTwoThatSayTheSame) {
  const WideProgram constant = [](std::int64_t, std::int64_t value) {
    return std::vector<std::size_t>{times(value * value, 900), times(value % 3, 7) + 1};
  };
  const std::size_t runs = search(with_outer(constant, 1), up_to(30), kFewMemory).runs;
  expect_all_rows_found(constant, range("seq", 40), range("batch", 30), 2 * runs);
}

TEST(FitFrontier, AssumesNothingOfListsOfValues) {
  const WideProgram falling = [](std::int64_t outer, std::int64_t value) {
    return std::vector<std::size_t>{times(value, 100000 / static_cast<std::size_t>(outer))};
  };
  const Vary outer{.name = "recompute", .values = {1, 2, 5}, .is_range = false};
  expect_all_rows_found(falling, outer, range("batch", 30), 3 * 12);
}

TEST(FitFrontier, HasCornersWhereTheLargestValueFalls) {
  const Vary outer = range("seq", 40);
  const Vary last = range("batch", 30);
  FitFrontier frontier({outer, last}, kFewMemory);
  run_all(frontier, bilinear, last.values);
  const FitQuestion question{.heap = Policy::Heap::pages, .memory_bytes = 400 * kMiB};
  std::size_t corners = 0;
  for (std::size_t row = 0; row < frontier.row_count(); ++row) {
    const std::optional<std::size_t> here = frontier.largest(row, question);
    const std::optional<std::size_t> next =
        row + 1 < frontier.row_count() ? frontier.largest(row + 1, question) : std::nullopt;
    EXPECT_EQ(frontier.is_corner(row, question), here != next) << row;
    corners += here != next ? 1 : 0;
  }
  EXPECT_GT(corners, 5u);
  EXPECT_LT(corners, 41u);
}

TEST(FitFrontier, IsBoundedBySmallerAndLargerValuesOfTwoRanges) {
  const auto program = [](std::int64_t layers, std::int64_t width) {
    return [layers, width](std::int64_t value) {
      return std::vector<std::size_t>{times(layers * width * value, 900), 5000};
    };
  };
  FitFrontier frontier({range("layers", 4), range("width", 7), range("batch", 30)}, kFewMemory);
  std::size_t runs = 0;
  for (auto wanted = frontier.wanted(); !wanted.empty(); wanted = frontier.wanted()) {
    for (const FitFrontier::Run& run : wanted) {
      const std::vector<std::int64_t> fixed = frontier.values_of(run.row);
      Recording recording;
      recording.parts.push_back(
          {.trace = trace_at(program(fixed[0], fixed[1]), static_cast<std::int64_t>(run.index) + 1),
           .other_bytes = 3 * kMiB});
      frontier.add(run, std::move(recording));
      ++runs;
    }
  }
  EXPECT_LE(runs, 60u);
  for (std::size_t row = 0; row < frontier.row_count(); row += 3) {
    const std::vector<std::int64_t> fixed = frontier.values_of(row);
    std::vector<std::optional<std::size_t>> largest;
    for (const std::size_t bytes : kFewMemory) {
      for (const Policy::Heap heap : kHeaps) largest.push_back(frontier.largest(row, {heap, bytes}));
    }
    ASSERT_EQ(largest, try_all(program(fixed[0], fixed[1]), up_to(30), kFewMemory)) << fixed[0] << " " << fixed[1];
  }
}

TEST(ARecording, IsNearlyEqualWhereSizesDifferByLessThanAThousandth) {
  const auto recording = [](std::size_t bytes, std::size_t other) {
    Recording made;
    made.parts.push_back({.trace = trace_in_text(fmt::format("a,0,{},0\n", bytes)), .other_bytes = other});
    return made;
  };
  EXPECT_TRUE(are_nearly_equal(recording(100000, 5), recording(100050, 5)));
  EXPECT_FALSE(are_nearly_equal(recording(100000, 5), recording(101000, 5)));
  EXPECT_FALSE(are_nearly_equal(recording(100000, 5), recording(100000, 6)));
}

void expect_refusal(const std::string& arguments, const std::string& part) {
  const Outcome outcome = run_command(fmt::format("'{}' fit {}", CACHALOT_COMMAND, arguments));
  EXPECT_EQ(outcome.exit_code, 2) << arguments;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(part));
}

TEST(Fit, RefusesWhatItCannotVary) {
  expect_refusal("", "no program was given; an example: cachalot fit --vary batch=1..256 train.py --batch {batch}");
  expect_refusal("echo 1", "no --vary was given, such as --vary batch=1..256");
  expect_refusal("--vary batch=1..9 echo 1", "--vary batch: the program has no {batch} in its words");
  expect_refusal("--vary batch echo '{batch}'", "--vary batch: it must be NAME=FIRST..LAST or NAME=VALUE,VALUE,…");
  expect_refusal("--vary batch=1,x echo '{batch}'", "--vary batch=1,x: 'x' is not a whole number");
  expect_refusal("--vary batch=-1..4 echo '{batch}'", "--vary batch=-1..4: '-1' is not a whole number");
  expect_refusal("--vary batch=9..1 echo '{batch}'", "--vary batch=9..1: a range goes from a smaller to a larger");
  expect_refusal("--vary batch=1..9 --vary batch=2 echo '{batch}'", "--vary batch: the parameter is given twice");
  expect_refusal("--vary seq=1..5000 --vary batch=1..9 echo '{seq} {batch}'",
                 "--vary: there are at least 5000 combinations of the values of seq, and 4096 are the most");
  expect_refusal("--vary batch=1..9 --rank 1 echo '{batch}'", "--rank and --local-rank need --world-size");
  expect_refusal("--vary batch=1..9 --world-size 2 --rank 2 echo '{batch}'",
                 "--rank 2 is not a rank of --world-size 2");
  expect_refusal("--vary batch=1..9 --gpu voodoo echo '{batch}'", "'voodoo' is not a known GPU");
}

TEST(Fit, SaysHowARunEndedThatDidNotEndWell) {
  if (std::string(CACHALOT_SIMULATED_PROGRAM).empty()) GTEST_SKIP() << "built without the simulated CUDA runtime";
  expect_refusal("--vary batch=4..5 sh -c 'echo told; exit {batch}'",
                 "with batch=4 the program ended with exit code 4; its last lines: told");
  expect_refusal("--vary batch=4 echo '{batch}'", "with batch=4 nothing is known of what the program allocates with");
}

}  // namespace
}  // namespace cachalot::tools
