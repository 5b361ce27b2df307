// The holders of live memory at a moment, by the reader's question: which kind of memory, which line, which module, which stage.
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

// The object of Python that holds an allocation, where the process told it.
struct BlockOwner {
  TextId name = 0;
  TextId kind = 0;
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

// A line whose allocations are short: each freed before the next few. A pool of buffers would spare them.
struct Temporary {
  std::string at;
  std::uint64_t bytes = 0;  // of each
  std::uint64_t count = 0;
  std::uint64_t most_live = 0;  // of them at once
};

// Calls of the moment as lines of a tree, the outermost first.
struct TreeLine {
  std::size_t depth = 0;
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::string at;
};

// Returns the owner of each allocation at the end; empty where no owner is told.
std::vector<BlockOwner> owners_of(const Timeline& timeline);

// Returns the categories; those of memory whose owner is told are the owner's.
std::vector<Category> told_categories(const History& history, std::span<const BlockOwner> owners,
                                      std::span<const Category> categories);

// Returns the live memory of the moment by each question. `categories` are of the timeline's allocations, and `names` has the names of
// them; `frames` are the calls that lines show.
Shares shares_of(const Timeline& timeline, std::span<const Category> categories, const Categorizer& names,
                 const Moment& moment, Sites& sites, Frames frames);

// Returns the lines with most bytes allocated in temporaries of one size, at most `most`, each with at least ten of them.
std::vector<Temporary> temporaries_of(std::span<const Allocation> allocations, Sites& sites, std::size_t most);

// Returns the calls that made 2 % of the moment's live memory or more.
std::vector<TreeLine> tree_of(const Timeline& timeline, const Moment& moment, Sites& sites, Frames frames);

}  // namespace cachalot::tools
