// The reports of one device's guard: callers' mistakes, the caller of each call, and the receivers of reports.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "api/device_allocator.h"
#include "base/locks.h"
#include "cachalot/device.h"
#include "cachalot/guard.h"
#include "diagnostics/guard_books.h"

CACHALOT_BEGIN

// The receivers of reports: the handler, the count, and a list for later queries.
// Thread safety: any thread. The handler runs without a lock.
class GuardLog {
 public:
  static constexpr std::size_t kKept = 1000;  // reports that were not taken

  using Reports = std::vector<GuardReport>;

  // While one lives, the handler receives the thread's reports when the batch ends: so nothing that a handler throws
  // leaves a call of the allocator half done. One within another of the same log leaves it to that one.
  class Batch {
   public:
    explicit Batch(GuardLog& log) noexcept;
    // Passes the remaining reports to the handler; drops exceptions of handlers.
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
  // Passes all reports to the handler; throws its first exception.
  void add(const Reports& reports);
  // Passes the findings of `action` to the handler when that is done. The action's exception takes precedence over
  // handlers'.
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

// GuardMistakes turns what callers of one device do wrong into reports, with debug, and remembers for it which private
// pools were released by all their users.
//
// Thread safety: any thread; `mutex_` guards the released pools. Reports go to the log with no lock held.
// GuardCalls numbers the allocations and frees of one device, and has the caller of each: thread, time and, with debug,
// stack.
//
// Thread safety: any thread, without a lock. Taking a stack is slow: never under a lock.
class GuardCalls {
 public:
  GuardCalls(Device& device, bool takes_stacks) : device_(device), takes_stacks_(takes_stacks) {}

  // Returns the calling thread's stack; an empty one where none are taken.
  CallStack stack_now() const;
  // Returns the next call, made by this thread just now.
  GuardCall next(CallStack stack);
  // Returns a mistake that this thread makes now; its number is that of the call before.
  GuardCall mistake() const;

 private:
  Device& device_;
  const bool takes_stacks_;
  std::atomic<std::uint64_t> last_{0};
};

class GuardMistakes {
 public:
  GuardMistakes(const DeviceAllocator& heap, const GuardCalls& calls, GuardLog& log)
      : heap_(heap), calls_(calls), log_(log) {}
  GuardMistakes(const GuardMistakes&) = delete;
  GuardMistakes& operator=(const GuardMistakes&) = delete;

  // Reports what the calling thread did with `ptr`, which was last seen in `sighting`, if anywhere.
  void report(GuardReport::Kind kind, const void* ptr, const std::optional<GuardSighting>& sighting,
              std::string message);
  // Reports the use of a private pool that all its users have released; `message` says what was done with it.
  void report_released_pool(PoolId pool, std::string_view message);
  // Notes that the pool has got a user, or lost one.
  void note_users(PoolId pool);

 private:
  static constexpr std::size_t kPoolsKept = 1024;

  void add(GuardReport report);

  const DeviceAllocator& heap_;
  const GuardCalls& calls_;
  GuardLog& log_;
  SleepingMutex mutex_;
  std::map<PoolId, GuardCall> released_pools_ CACHALOT_GUARDED_BY(mutex_);
};

CACHALOT_END
