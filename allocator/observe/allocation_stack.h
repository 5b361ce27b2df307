// The call stack of the allocation that a thread is in, from where it is taken, before any lock, to where watchers are told.
// A thread's allocations nest: a callback that is to free memory may allocate.
#pragma once

#include "cachalot/call_stack.h"

CACHALOT_BEGIN

class AllocationStack {
 public:
  // Takes it if anybody wants it.
  explicit AllocationStack(bool wanted) : outer_(innermost_) {
    if (wanted) stack_ = CallStack::capture(CallStack::Frames::script_or_native);
    innermost_ = this;
  }
  ~AllocationStack() { innermost_ = outer_; }
  AllocationStack(const AllocationStack&) = delete;
  AllocationStack& operator=(const AllocationStack&) = delete;

  static CallStack of_this_thread() { return innermost_ != nullptr ? innermost_->stack_ : CallStack(); }

 private:
  CallStack stack_;
  const AllocationStack* const outer_;
  static inline thread_local const AllocationStack* innermost_ = nullptr;
};

CACHALOT_END
