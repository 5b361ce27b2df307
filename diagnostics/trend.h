// Tests whether a series grows: a leak's live bytes do, at each step by about as much.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "cachalot/version.h"

CACHALOT_BEGIN

struct Trend {
  double slope = 0;       // per sample: the median of the slopes of all pairs (Theil and Sen)
  double confidence = 0;  // that there is a trend upwards at all: one-sided test of Mann and Kendall, in (0, 1)
};

inline constexpr std::size_t kFewestSamples = 8;  // with fewer, no series passes the test at 0.999

// Returns the trend of at least two samples, in their order.
Trend trend_of(std::span<const std::size_t> samples);

// The trend of a series that grows from third to third, above what it was before in the last one, with at least this
// confidence; nullopt for any other.
std::optional<Trend> growth_of(std::span<const std::size_t> samples, double min_confidence);

CACHALOT_END
