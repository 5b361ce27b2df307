// Where reports go: to the handler, into the count, and onto a list for who asks later.
// Thread safety: any thread. The handler runs without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <type_traits>
#include <vector>

#include "base/locks.h"
#include "cachalot/guard.h"

CACHALOT_BEGIN

class GuardLog {
 public:
  static constexpr std::size_t kKept = 1000;  // reports that nobody has taken

  using Reports = std::vector<GuardReport>;

  // While one lives, the handler hears of what the thread adds when it goes: so nothing that a handler throws leaves a
  // call of the allocator half done. One within another of the same log leaves it to that one.
  class Batch {
   public:
    explicit Batch(GuardLog& log) noexcept;
    // What is not told yet is told; what handlers throw is dropped.
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    void tell();  // nothing is added any more; throws what handlers throw

   private:
    friend class GuardLog;
    static Batch* innermost_of(const GuardLog& log);

    GuardLog& log_;
    Batch* const outer_;
    bool is_open_ = true;
    Reports reports_;
    static thread_local Batch* innermost_;
  };

  // An empty one: stderr.
  void set_handler(GuardHandler handler);
  // The handler hears of all; the first that it throws for comes out.
  void add(const Reports& reports);
  // The handler hears of what `action` finds when that is done. What the action throws goes before what handlers throw.
  template <typename Action>
  auto tell_after(Action action);
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  // Since the last call, the newest kKept.
  Reports take();

 private:
  void tell(const Reports& reports);

  SleepingMutex mutex_;
  GuardHandler handler_ CACHALOT_GUARDED_BY(mutex_);
  std::deque<GuardReport> untaken_ CACHALOT_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> count_{0};
};

template <typename Action>
auto GuardLog::tell_after(Action action) {
  Batch batch(*this);
  if constexpr (std::is_void_v<decltype(action())>) {
    action();
    batch.tell();
  } else {
    auto result = action();
    batch.tell();
    return result;
  }
}

CACHALOT_END
