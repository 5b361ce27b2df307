// The C boundary: the allocator of the process, and exceptions as codes and messages. For the files that implement the C
// API.
#pragma once

#include "cachalot/c_api.h"
#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN

// Returns the process's allocator, made by the first call. Throws why it cannot be made.
CachingAllocator& c_allocator();

// For use in a catch clause: keeps the message of the exception in flight for cachalot_last_error, and returns its code.
int translate_exception() noexcept;

// Runs `action` and returns a code.
template <typename Action>
int guarded(Action action) noexcept {
  try {
    action();
    return CACHALOT_OK;
  } catch (...) {
    return translate_exception();
  }
}

// Returns what `function` returns, or `otherwise` if it throws.
template <typename Value, typename Function>
Value value_or(Value otherwise, Function function) noexcept {
  try {
    return function();
  } catch (...) {
    translate_exception();
    return otherwise;
  }
}

CACHALOT_END
