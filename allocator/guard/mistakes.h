// GuardMistakes turns what callers of one device do wrong into reports, with debug, and remembers for it which private
// pools were released by all their users.
//
// Thread safety: any thread; `mutex_` guards the released pools. Reports go to the log with no lock held.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/locks.h"
#include "device_allocator.h"
#include "guard/guard_calls.h"
#include "guard/guard_log.h"
#include "guard/guarded_block.h"

CACHALOT_BEGIN

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
  // What that goes by: the pool has got a user, or lost one.
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
