// Where reports go: to the handler, into the count, and onto a list for who asks later.
// Thread safety: any thread. The handler runs without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "cachalot/guard.h"

namespace cachalot {

class GuardLog {
 public:
  static constexpr std::size_t kKept = 1000;  // reports that nobody has taken

  // An empty one: stderr.
  void set_handler(GuardHandler handler);
  void add(const std::vector<GuardReport>& reports);
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  // Since the last call, the newest kKept.
  std::vector<GuardReport> take();

 private:
  std::mutex mutex_;
  GuardHandler handler_;
  std::deque<GuardReport> untaken_;
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace cachalot
