// The common parts of the fuzz targets: numbers out of the fuzzer's bytes, and the report of a broken promise.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cachalot/errors.h"
#include "tests/programs/bytes.h"

namespace cachalot::fuzz {

// Ends the process in a way that libFuzzer takes for a crash; the input is kept.
[[noreturn]] inline void broken(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}
inline void expect(bool holds, const char* what) {
  if (!holds) broken(what);
}

// Returns whether the action took the input; otherwise it refused it with a message.
template <typename Action>
bool is_taken(Action&& action) {
  try {
    action();
    return true;
  } catch (const InvalidArgument& error) {
    expect(*error.what() != '\0', "an error without a message");
    return false;
  }
}

}  // namespace cachalot::fuzz
