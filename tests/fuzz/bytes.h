// What the fuzz targets share: numbers out of the fuzzer's bytes, and what a broken promise looks like.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cachalot/errors.h"
#include "tests/programs/bytes.h"

namespace cachalot::fuzz {

// What libFuzzer takes for a crash; the input is kept.
[[noreturn]] inline void broken(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}
inline void expect(bool holds, const char* what) {
  if (!holds) broken(what);
}

// Whether the action took the input; else it refused it with a message.
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
