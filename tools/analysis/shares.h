// What is live at a moment, by what a reader asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools {

// Requested bytes, and how many allocations they are.
struct Share {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
};

// Lists of shares, the largest first in each. A module, a stage or a line that is not known is "".
struct Shares {
  std::vector<Share> categories;
  std::vector<Share> modules;
  std::vector<Share> lines;
  std::vector<Share> pools;    // "default", "(1, 0)"
  std::vector<Share> streams;  // "0x0"
  std::vector<Share> stages;
};

Shares shares_of(const History& history, std::span<const Allocation> allocations, std::span<const Category> categories,
                 const Categorizer& names, const Peak& peak, const Stages& stages, Sites& sites, Frames frames);

// A line whose allocations are short: each freed before the next few. A pool of buffers would spare them.
struct Temporary {
  std::string at;
  std::uint64_t bytes = 0;  // of each
  std::uint64_t count = 0;
  std::uint64_t most_live = 0;  // of them at once
};

// Returns the lines with most bytes allocated in temporaries of one size, at least kFewestTemporaries each.
inline constexpr std::uint64_t kFewestTemporaries = 10;
std::vector<Temporary> temporaries_of(std::span<const Allocation> allocations, Sites& sites, std::size_t most);

}  // namespace cachalot::tools
