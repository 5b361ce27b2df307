#include "tools/live/record_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "cachalot/errors.h"
#include "leaks/trend.h"
#include "tools/quoted.h"

namespace cachalot::tools::live {
namespace {

constexpr std::size_t kMostStretches = 256;  // of a series: Theil and Sen look at all pairs
constexpr double kCertain = 0.999;

// A series of any length in at most kMostStretches stretches of as many samples each. `Stretch` has += for the next one.
template <typename Stretch>
class Thinned {
 public:
  void add(const Stretch& sample) {
    if (in_last_ == 0) {
      if (stretches_.size() == kMostStretches) halve();
      stretches_.push_back(sample);
    } else {
      stretches_.back() += sample;
    }
    in_last_ = (in_last_ + 1) % stride_;
  }
  const std::vector<Stretch>& stretches() const { return stretches_; }

 private:
  void halve() {
    for (std::size_t i = 0; i < kMostStretches / 2; ++i) {
      stretches_[i] = stretches_[2 * i];
      stretches_[i] += stretches_[2 * i + 1];
    }
    stretches_.resize(kMostStretches / 2);
    stride_ *= 2;
  }

  std::vector<Stretch> stretches_;
  std::size_t stride_ = 1;
  std::size_t in_last_ = 0;  // samples of the last stretch, 0 if it is full
};

// What a program holds between its steps is the lowest figure of a stretch; what is above it comes and goes.
struct Low {
  std::uint64_t bytes;
  void operator+=(const Low& next) { bytes = std::min(bytes, next.bytes); }
};

struct FragmentationSum {
  double time, internal, external, unused;
  double count = 1;
  void operator+=(const FragmentationSum& next) {
    internal += next.internal;
    external += next.external;
    unused += next.unused;
    count += next.count;
  }
};

Growth growth_of_series(const Thinned<Low>& series, double seconds) {
  std::vector<std::size_t> lows;
  for (const Low& low : series.stretches()) lows.push_back(low.bytes);
  if (lows.size() < kFewestSamples || seconds <= 0) return {};
  const Trend trend = trend_of(lows);
  const double stretches_per_hour = 3600 / (seconds / static_cast<double>(lows.size()));
  return {.bytes_per_hour = trend.slope * stretches_per_hour,
          .confidence = trend.confidence,
          .is_certain = growth_of(lows, kCertain).has_value()};
}

struct PoolSeries {
  PoolSummary summary;
  Thinned<Low> used;
};

struct DeviceSeries {
  DeviceSummary summary;
  std::uint64_t first_ooms = 0;
  std::uint64_t first_retries = 0;
  Thinned<Low> allocated;
  Thinned<FragmentationSum> fragmentation;
  std::map<std::string, PoolSeries> pools;
};

void raise(std::uint64_t& peak, std::uint64_t bytes) { peak = std::max(peak, bytes); }

void raise(std::uint64_t& peak, double& when, std::uint64_t bytes, double now) {
  if (bytes <= peak) return;
  peak = bytes;
  when = now;
}

// Counts start again from 0 where the program resets them.
std::uint64_t more_than(std::uint64_t now, std::uint64_t& first) {
  first = std::min(first, now);
  return now - first;
}

class Summing {
 public:
  explicit Summing(const std::string& path) : path_(path) {}

  void add(const Sample& sample) {
    if (summary_.samples++ == 0) summary_.first_time = sample.time;
    summary_.last_time = sample.time;
    for (const ProcessSample& process : sample.processes) {
      for (const DeviceSample& device : process.devices) {
        if (device.is_used()) add(series_of(sample, process, device), sample, device);
      }
    }
  }

  RecordSummary take() {
    for (auto& [key, series] : series_) summary_.devices.push_back(finish(series));
    std::ranges::stable_sort(summary_.devices, std::greater{}, &DeviceSummary::peak_reserved_bytes);
    return std::move(summary_);
  }

 private:
  using Key = std::tuple<std::uint64_t, std::string, int>;  // start and page of the process, and the device

  void count_one() {
    if (++count_ > kMostSummarized) {
      throw InvalidArgument(
          fmt::format("record {}: it has more than {} devices and pools", Printable{path_}, kMostSummarized));
    }
  }

  DeviceSeries& series_of(const Sample& sample, const ProcessSample& process, const DeviceSample& device) {
    const auto [found, is_new] = series_.try_emplace(Key(process.start, process.page, device.index));
    DeviceSeries& series = found->second;
    if (!is_new) return series;
    count_one();
    series.summary.pid = process.pid;
    series.summary.command = process.command;
    series.summary.device = device.index;
    series.summary.name = device.name;
    series.summary.first_seen = sample.time;
    series.first_ooms = device.ooms;
    series.first_retries = device.retries;
    return series;
  }

  void add(DeviceSeries& series, const Sample& sample, const DeviceSample& device) {
    DeviceSummary& summary = series.summary;
    summary.last_seen = sample.time;
    ++summary.samples;
    raise(summary.peak_allocated_bytes, summary.peak_allocated_time, device.allocated_bytes, sample.time);
    raise(summary.peak_reserved_bytes, summary.peak_reserved_time, device.reserved_bytes, sample.time);
    raise(summary.highest_peak_allocated_bytes, device.peak_allocated_bytes);
    raise(summary.highest_peak_reserved_bytes, device.peak_reserved_bytes);
    summary.ooms = std::max(summary.ooms, more_than(device.ooms, series.first_ooms));
    summary.retries = std::max(summary.retries, more_than(device.retries, series.first_retries));
    series.allocated.add({device.allocated_bytes});
    series.fragmentation.add({.time = sample.time,
                              .internal = device.internal_fragmentation(),
                              .external = device.external_fragmentation(),
                              .unused = device.unused_share()});
    for (const PoolSample& pool : device.pools) add(series, pool);
  }

  void add(DeviceSeries& device, const PoolSample& pool) {
    const auto [found, is_new] = device.pools.try_emplace(pool.name());
    if (is_new) count_one();
    PoolSeries& series = found->second;
    series.summary.name = found->first;
    raise(series.summary.peak_used_bytes, pool.used_bytes);
    raise(series.summary.peak_reserved_bytes, pool.reserved_bytes);
    series.used.add({pool.used_bytes});
  }

  static DeviceSummary finish(DeviceSeries& series) {
    DeviceSummary summary = std::move(series.summary);
    const double seconds = summary.last_seen - summary.first_seen;
    summary.growth = growth_of_series(series.allocated, seconds);
    for (auto& [name, pool] : series.pools) {
      pool.summary.growth = growth_of_series(pool.used, seconds);
      summary.pools.push_back(std::move(pool.summary));
    }
    std::ranges::stable_sort(summary.pools, std::greater{}, &PoolSummary::peak_reserved_bytes);
    for (const FragmentationSum& sum : series.fragmentation.stretches()) {
      summary.fragmentation.push_back(
          {sum.time, sum.internal / sum.count, sum.external / sum.count, sum.unused / sum.count});
    }
    return summary;
  }

  const std::string path_;
  RecordSummary summary_;
  std::map<Key, DeviceSeries> series_;
  std::size_t count_ = 0;
};

}  // namespace

RecordSummary summarize(RecordReader& record) {
  Summing summing(record.path());
  while (const std::optional<Sample> sample = record.next()) summing.add(*sample);
  RecordSummary summary = summing.take();
  summary.is_cut = record.is_cut();
  return summary;
}

}  // namespace cachalot::tools::live
