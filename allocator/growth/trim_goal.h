// A TrimGoal says how much cached memory a growth gives back without waiting for the device. Its units (segments, or
// handles) differ in size.
#pragma once

#include <cstddef>
#include <vector>

#include "cachalot/version.h"

CACHALOT_BEGIN

// What goes back, and how much that is.
template <typename Unit>
struct ChosenUnits {
  std::vector<Unit> units;
  std::size_t bytes = 0;
};

struct TrimGoal {
  std::size_t bytes = 0;
  bool may_exceed = false;  // true: at least `bytes`, by as little as possible; false: at most

  // Returns those of `units` to give back, of which `size_of` tells the bytes: the largest first, since these take the
  // fewest calls.
  template <typename Unit, typename SizeOf>
  ChosenUnits<Unit> choose(const std::vector<Unit>& units, SizeOf size_of) const;

 private:
  // Returns the indices of the units with these sizes.
  std::vector<std::size_t> choose_of(const std::vector<std::size_t>& sizes) const;
};

template <typename Unit, typename SizeOf>
ChosenUnits<Unit> TrimGoal::choose(const std::vector<Unit>& units, SizeOf size_of) const {
  std::vector<std::size_t> sizes;
  sizes.reserve(units.size());
  for (const Unit& unit : units) sizes.push_back(size_of(unit));
  ChosenUnits<Unit> chosen;
  for (const std::size_t index : choose_of(sizes)) {
    chosen.units.push_back(units[index]);
    chosen.bytes += sizes[index];
  }
  return chosen;
}

CACHALOT_END
