#include "diagnostics/trend.h"

#include <algorithm>
#include <cmath>
#include <vector>

CACHALOT_BEGIN

namespace {

template <typename Value>
Value median(std::vector<Value> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::size_t median_of(std::span<const std::size_t> samples) {
  return median(std::vector<std::size_t>(samples.begin(), samples.end()));
}

double times_tied(double count) { return count * (count - 1) * (2 * count + 5); }

// Returns the variance of the sum of signs over all pairs, for samples in random order (Kendall, 1975). Equal samples
// lower it.
double variance(std::span<const std::size_t> samples) {
  std::vector<std::size_t> sorted(samples.begin(), samples.end());
  std::ranges::sort(sorted);
  double sum = times_tied(static_cast<double>(sorted.size()));
  for (auto at = sorted.begin(); at != sorted.end();) {
    const auto end = std::upper_bound(at, sorted.end(), *at);
    sum -= times_tied(static_cast<double>(end - at));
    at = end;
  }
  return sum / 18;
}

bool grows_from_third_to_third(std::span<const std::size_t> samples) {
  const std::size_t third = samples.size() / 3;
  const auto first = samples.first(third);
  const auto second = samples.subspan(third, samples.size() - 2 * third);
  const auto last = samples.last(third);
  return median_of(first) < median_of(second) && median_of(second) < median_of(last) &&
         std::ranges::max(last) > std::ranges::max(samples.first(samples.size() - third));
}

}  // namespace

Trend trend_of(std::span<const std::size_t> samples) {
  std::vector<double> slopes;
  slopes.reserve(samples.size() * (samples.size() - 1) / 2);
  double signs = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t j = i + 1; j < samples.size(); ++j) {
      const double rise = static_cast<double>(samples[j]) - static_cast<double>(samples[i]);
      signs += rise > 0 ? 1 : rise < 0 ? -1 : 0;
      slopes.push_back(rise / static_cast<double>(j - i));
    }
  }
  if (slopes.empty()) return {};
  const double spread = variance(samples);
  if (spread <= 0) return {0, 0.5};  // all are equal
  // One less: the sum moves in steps of two, and the normal distribution is continuous.
  const double z = (std::max(std::abs(signs) - 1, 0.0) * (signs < 0 ? -1 : 1)) / std::sqrt(spread);
  return {median(std::move(slopes)), 0.5 * std::erfc(-z / std::sqrt(2.0))};
}

std::optional<Trend> growth_of(std::span<const std::size_t> samples, double min_confidence) {
  if (samples.size() < kFewestSamples || !grows_from_third_to_third(samples)) return std::nullopt;
  const Trend trend = trend_of(samples);
  if (trend.slope <= 0 || trend.confidence < min_confidence) return std::nullopt;
  return trend;
}

CACHALOT_END
