// Who used which bytes last: a map from intervals of physical numbers to the uses that still matter.
//
// Invariants: intervals do not overlap and are not empty. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cachalot/device.h"

CACHALOT_BEGIN

// The latest launch of a stream that used memory through one mapping; earlier ones on the stream come before it.
struct Use {
  std::size_t stream = 0;    // the checker's number
  std::uint64_t launch = 0;  // of the stream: 1, 2, …
  std::uint64_t mapping = 0;
  friend bool operator==(const Use&, const Use&) = default;
};

class UseMap {
 public:
  struct Interval {
    std::uint64_t end = 0;
    Address owner = 0;  // of the live handout that holds it; 0: none
    std::vector<Use> uses;
  };
  using Intervals = std::map<std::uint64_t, Interval>;

  // Calls visit(first, interval) for what is known of [first, first + bytes), cut to it.
  template <typename Visit>
  void for_each(std::uint64_t first, std::size_t bytes, Visit visit) {
    const std::uint64_t end = first + bytes;
    for (auto at = cut_at(first); at != intervals_.end() && at->first < end; ++at) {
      if (at->second.end > end) cut_at(end);
      visit(at->first, at->second);
    }
  }
  // The same, with empty intervals made where nothing is known.
  template <typename Visit>
  void for_each_filled(std::uint64_t first, std::size_t bytes, Visit visit) {
    fill(first, bytes);
    for_each(first, bytes, visit);
  }
  // Makes one interval of neighbours within the range that say the same.
  void merge_equals(std::uint64_t first, std::size_t bytes);
  void erase(std::uint64_t first, std::size_t bytes);
  std::size_t size() const { return intervals_.size(); }

 private:
  Intervals::iterator cut_at(std::uint64_t position);
  void fill(std::uint64_t first, std::size_t bytes);

  Intervals intervals_;
};

// Keeps the latest use per stream and mapping.
void add_use(std::vector<Use>& uses, const Use& use);

CACHALOT_END
