// A VectorClock has the launches of each stream before a point in time: entry i counts the launches of stream number i.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/format.h"

CACHALOT_BEGIN

class VectorClock {
 public:
  std::uint64_t operator[](std::size_t stream) const { return stream < seen_.size() ? seen_[stream] : 0; }

  void set(std::size_t stream, std::uint64_t launches) {
    if (stream >= seen_.size()) seen_.resize(stream + 1);
    seen_[stream] = launches;
  }
  void join(const VectorClock& other) {
    if (other.seen_.size() > seen_.size()) seen_.resize(other.seen_.size());
    for (std::size_t i = 0; i < other.seen_.size(); ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }
  void clear() { seen_.clear(); }

 private:
  std::vector<std::uint64_t> seen_;
};

CACHALOT_END
