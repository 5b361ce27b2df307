// The host memory that the objects made of one file may take.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/history/history.h"

namespace cachalot::tools {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t limit) : limit_(limit) {}

  // Throws InvalidArgument for what would go beyond the limit.
  void charge(std::size_t bytes) {
    CACHALOT_REQUIRE(bytes <= limit_ - used_,
                     "what the file tells of takes more than {}, the most for a file of its size",
                     format_bytes(limit_));
    used_ += bytes;
  }
  // Takes back a charge.
  void release(std::size_t bytes) { used_ -= bytes; }

 private:
  std::size_t limit_;
  std::size_t used_ = 0;
};

// The events of one device while they arrive. A vector that doubles holds three times its bytes while it moves; this one
// holds 64 MiB more than its events.
class EventList {
 public:
  void add(const HistoryEvent& event, MemoryBudget& budget) {
    if (last_.size() == last_.capacity()) grow(budget);
    last_.push_back(event);
    ++size_;
  }
  std::size_t size() const { return size_; }

  // Each part is freed once its events are in the whole.
  std::vector<HistoryEvent> take() {
    if (full_.empty()) return std::move(last_);
    full_.push_back(std::move(last_));
    std::vector<HistoryEvent> events;
    events.reserve(size_);
    for (std::vector<HistoryEvent>& part : full_) {
      events.insert(events.end(), part.begin(), part.end());
      std::vector<HistoryEvent>().swap(part);
    }
    return events;
  }

 private:
  static constexpr std::size_t kPart = (std::size_t{64} << 20) / sizeof(HistoryEvent);

  void grow(MemoryBudget& budget) {
    if (last_.size() == kPart) full_.push_back(std::exchange(last_, {}));
    const std::size_t more = !full_.empty() ? kPart : std::min(kPart, 2 * last_.size() + 64);
    budget.charge((more - last_.size()) * sizeof(HistoryEvent));
    last_.reserve(more);
  }

  std::vector<std::vector<HistoryEvent>> full_;
  std::vector<HistoryEvent> last_;
  std::size_t size_ = 0;
};

}  // namespace cachalot::tools
