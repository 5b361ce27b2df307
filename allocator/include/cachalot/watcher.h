/// @file
/// The observer of allocations and their call stacks.
#pragma once

#include "cachalot/require_cpp17.h"

#include "cachalot/call_stack.h"
#include "cachalot/change.h"

CACHALOT_BEGIN_API

/// A Watcher observes every allocation and free, with the call stack of each allocation. Derive
/// from it and pass it to CachingAllocator::add_watcher.
///
/// A watcher sees the blocks of the user, whatever the history records. With the guard on these are
/// the blocks that the guard hands out, and a free is seen when the user frees, not when the block
/// leaves quarantine.
///
/// Cost: while there is a watcher, each allocation takes a call stack and goes past the thread
/// caches.
class Watcher {
 public:
  virtual ~Watcher() = default;

  /// Called for every change. A block's free is reported before its memory is allocated again. With
  /// the guard on, only alloc and free_requested are reported.
  ///
  /// `stack` is the stack of the allocation (Change::Action::alloc), taken before any lock. It is
  /// empty for other changes and for blocks restored by a checkpoint.
  ///
  /// Called with the device's lock held; calls for different devices may run concurrently.
  /// Requires: the function is fast and does not call the allocator.
  virtual void on_change(const Change& change, const CallStack& stack) noexcept = 0;
};

CACHALOT_END_API
