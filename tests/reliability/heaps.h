// The common parts of the reliability tests: every heap, and the amount of work (tests/scale.h).
#pragma once

#include <cstdlib>

#include "tests/scale.h"

namespace cachalot {

inline constexpr const char* kHeaps[] = {"",
                                         "thread_cache:True",
                                         "heap:async",
                                         "heap:managed",
                                         "heap:pages",
                                         "heap:pages,cross_stream:scarce,thread_cache:False",
                                         "heap:pages,cross_stream:wait",
                                         "heap:pages,cross_stream:off,page_size_mb:2"};

// Returns whether a failing program is made shorter before it is printed: CACHALOT_TEST_SHORTEN=0 says no.
inline bool shortens() {
  const char* text = std::getenv("CACHALOT_TEST_SHORTEN");
  return text == nullptr || *text != '0';
}

}  // namespace cachalot
