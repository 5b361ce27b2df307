#include "growth/trim_goal.h"

#include <algorithm>
#include <numeric>

CACHALOT_BEGIN

std::vector<std::size_t> TrimGoal::choose_of(const std::vector<std::size_t>& sizes) const {
  std::vector<std::size_t> largest_first(sizes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::ranges::stable_sort(largest_first, [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::size_t> chosen;
  std::size_t left = bytes;
  const std::size_t* smallest_left_out = nullptr;
  for (const std::size_t& index : largest_first) {
    if (sizes[index] > left) {
      smallest_left_out = &index;
      continue;
    }
    left -= sizes[index];
    chosen.push_back(index);
  }
  if (may_exceed && left != 0 && smallest_left_out != nullptr) chosen.push_back(*smallest_left_out);
  return chosen;
}

CACHALOT_END
