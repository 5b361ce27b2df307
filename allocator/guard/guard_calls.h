// GuardCalls numbers the allocations and frees of one device, and says who made each: thread, time and, with debug,
// stack.
//
// Thread safety: any thread, without a lock. Taking a stack is slow: never under a lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "cachalot/device.h"
#include "cachalot/guard.h"

CACHALOT_BEGIN

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

CACHALOT_END
