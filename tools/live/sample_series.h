// The memory of each device over the samples that were seen, for a page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tools/base/report_tree.h"
#include "tools/live/sample.h"

namespace cachalot::tools::live {

// A SampleSeries keeps its memory bounded: points of a long series stand for several samples, each figure the largest of
// them, and of many series those stay that were seen last. Not thread-safe.
class SampleSeries {
 public:
  static constexpr std::size_t kMostPoints = 2048;  // of a series
  static constexpr std::size_t kMostSeries = 64;

  void add(const Sample& sample);
  // Returns a table with a chart for each device of each process, in the order of the processes' numbers.
  Section report() const;

 private:
  static constexpr std::size_t kFigures = 4;
  struct Point {
    double time = 0;  // of its last sample
    std::array<std::uint64_t, kFigures> bytes{};
    std::size_t samples = 1;
  };
  struct Series {
    std::string title;
    std::size_t samples_per_point = 1;
    std::vector<Point> points;
  };

  static void merge(Point& point, const Point& next);
  static void add(Series& series, const Point& point);

  std::map<std::tuple<std::uint64_t, std::string, int>, Series> series_;  // by number, page and device
};

}  // namespace cachalot::tools::live
