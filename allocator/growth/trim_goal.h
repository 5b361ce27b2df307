// A TrimGoal says how much cached memory a growth gives back without waiting for the device. Its units (segments, or
// handles) differ in size.
#pragma once

#include <cstddef>
#include <vector>

#include "cachalot/version.h"

CACHALOT_BEGIN

struct TrimGoal {
  std::size_t bytes = 0;
  bool may_exceed = false;  // true: at least `bytes`, by as little as possible; false: at most

  // Returns the indices of the units to give back, of which `units` are the sizes: the largest first, since these take
  // the fewest calls.
  std::vector<std::size_t> choose(const std::vector<std::size_t>& units) const;
};

CACHALOT_END
