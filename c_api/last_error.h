// Exceptions at the C boundary: their codes, and their text for cachalot_last_error. Every exported function that returns a code, or
// a result that is 0 or NULL on failure, is written with these.
#pragma once

#include <string>

#include "cachalot/c_api.h"

namespace cachalot {

// The text of the calling thread's last failure; "" after what empties it. Read and emptied on the fast path: a plain pointer, found
// without a call.
extern constinit thread_local const char* last_error [[gnu::tls_model("initial-exec"), gnu::visibility("hidden")]];

// For use in a catch clause: keeps the message of the exception in flight for cachalot_last_error, and returns its code.
int keep_exception() noexcept;

// Runs `action` and returns a code.
template <typename Action>
int guarded(Action action) noexcept {
  try {
    action();
    return CACHALOT_OK;
  } catch (...) {
    return keep_exception();
  }
}

// Returns what `function` returns, or `otherwise` if it throws.
template <typename Value, typename Function>
Value value_or(Value otherwise, Function function) noexcept {
  try {
    return function();
  } catch (...) {
    keep_exception();
    return otherwise;
  }
}

// Returns a copy for the caller to free, with cachalot_string_free. Throws std::bad_alloc.
char* copy_of(const std::string& text);

// Returns a copy of the text that `function` returns, or NULL if it throws.
template <typename Function>
char* text_or_null(Function function) noexcept {
  return value_or<char*>(nullptr, [&] { return copy_of(function()); });
}

}  // namespace cachalot
