// Who wants to know of every allocation and free together with where in the program it was asked for.
//
// A watcher sees the user's blocks, whatever history records and whoever records it: with the guard on the blocks that the
// guard hands out, and their frees when the user frees them, not when they leave quarantine. While somebody watches,
// allocations take a call stack each and go past the caches of the threads.
#pragma once

#include "cachalot/require_cpp17.h"

#include "cachalot/call_stack.h"
#include "cachalot/change.h"

namespace cachalot {

class Watcher {
 public:
  virtual ~Watcher() = default;

  // The stack is the one of an allocation (Change::Action::alloc), taken before it without any lock; empty for other changes,
  // and for what nobody asked for, as the blocks that a checkpoint of a pool brings back. Called under the device's lock, for
  // several devices at a time: must be quick and must not call the allocator. With the guard on only alloc and free_requested
  // are seen. A block's free is told before anybody gets its memory again.
  virtual void on_change(const Change& change, const CallStack& stack) noexcept = 0;
};

}  // namespace cachalot
