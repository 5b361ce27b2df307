#include "tools/live/sample_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cachalot::tools::live {

void SampleSeries::merge(Point& point, const Point& next) {
  point.time = next.time;
  point.samples += next.samples;
  for (std::size_t i = 0; i < kFigures; ++i) point.bytes[i] = std::max(point.bytes[i], next.bytes[i]);
}

void SampleSeries::add(Series& series, const Point& point) {
  std::vector<Point>& points = series.points;
  if (!points.empty() && points.back().samples < series.samples_per_point) return merge(points.back(), point);
  if (points.size() == kMostPoints) {
    for (std::size_t i = 0; i < kMostPoints / 2; ++i) {
      points[i] = points[2 * i];
      merge(points[i], points[2 * i + 1]);
    }
    points.resize(kMostPoints / 2);
    series.samples_per_point *= 2;
  }
  points.push_back(point);
}

void SampleSeries::add(const Sample& sample) {
  for (const ProcessSample& process : sample.processes) {
    for (const DeviceSample& device : process.devices) {
      if (!device.is_used()) continue;
      const StatisticsPageDevice& page = device.page;
      Series& series = series_[{process.pid, process.page, page.index}];
      series.title = fmt::format("Memory over time, process {}, device {}", process.pid, page.index);
      add(series, {.time = sample.time,
                   .bytes = {page.reserved_bytes, page.allocated_bytes, page.requested_bytes, page.asleep_bytes}});
    }
  }
  while (series_.size() > kMostSeries) {
    series_.erase(
        std::ranges::min_element(series_, {}, [](const auto& each) { return each.second.points.back().time; }));
  }
}

Section SampleSeries::report() const {
  Section report;
  for (const auto& [key, series] : series_) {
    Table table{.title = series.title,
                .note = series.samples_per_point == 1
                            ? ""
                            : fmt::format("a point is the most of {} samples", series.samples_per_point),
                .columns = {{.title = "time", .unit = Unit::time}},
                .is_chart = true,
                .views = kPageAlone};
    for (const char* title : {"reserved", "allocated", "requested", "asleep"}) {
      table.columns.push_back({.title = title, .unit = Unit::bytes});
    }
    for (const Point& point : series.points) {
      table.rows.emplace_back(point.bytes.begin(), point.bytes.end());
      table.rows.back().insert(table.rows.back().begin(), Cell(point.time));
    }
    report.add(std::move(table));
  }
  return report;
}

}  // namespace cachalot::tools::live
