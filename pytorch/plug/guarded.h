// Exceptions for ctypes: codes, with their text in a buffer of the caller's.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "cachalot/errors.h"
#include "pytorch/plug/plug.h"

namespace cachalot {

// Returns the result of `action`, or with the reason in `error` -2 when memory ran out, -3 for a mistake of the caller's, -1
// after any other error.
template <typename Action>
auto guarded(char* error, std::size_t capacity, Action action) noexcept -> decltype(action()) {
  try {
    return action();
  } catch (const OutOfMemory& exception) {
    copy_text(exception.what(), error, capacity);
    return -2;
  } catch (const InvalidArgument& exception) {
    copy_text(exception.what(), error, capacity);
    return -3;
  } catch (const std::exception& exception) {
    copy_text(exception.what(), error, capacity);
  } catch (...) {
    copy_text("unknown exception", error, capacity);
  }
  return -1;
}

// The bytes of the text that `action` returns, which is cut to `capacity`; or as above, with the reason in `text`.
template <typename Action>
long guarded_text(char* text, long capacity, Action action) noexcept {
  const std::size_t room = capacity < 0 ? 0 : static_cast<std::size_t>(capacity);
  return guarded(text, room, [&] {
    const std::string answer = action();
    copy_text(answer, text, room);
    return static_cast<long>(answer.size());
  });
}

// Keeps code and message of a failed call for cachalot_library_last_error, in the calling thread: for C callbacks, which
// have no other way to tell.
void keep_library_error(int code, const char* message) noexcept;

}  // namespace cachalot
