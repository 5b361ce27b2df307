// CACHALOT_REQUIRE: the caller's mistake; always on, throws InvalidArgument with a message that names value and rule.
// CACHALOT_ASSERT: our own mistake; debug builds only.
#pragma once

#include <cassert>

#include "base/format.h"
#include "cachalot/errors.h"

#define CACHALOT_REQUIRE(condition, ...)                                     \
  do {                                                                       \
    if (!(condition)) [[unlikely]]                                           \
      throw ::cachalot::InvalidArgument(::cachalot::formatted(__VA_ARGS__)); \
  } while (false)

#define CACHALOT_ASSERT(condition) assert(condition)

// For the few functions that make up a malloc and a free: calls between them would cost as much as their work.
#ifdef CACHALOT_COVERAGE  // where each copy's branches would be counted
#define CACHALOT_FAST_PATH inline
#else
#define CACHALOT_FAST_PATH [[gnu::always_inline]] inline
#endif
