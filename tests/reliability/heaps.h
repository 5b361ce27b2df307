// What the tests of reliability share: every heap there is, and how much is done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace cachalot {

inline constexpr const char* kHeaps[] = {"",
                                         "thread_cache:True",
                                         "heap:pages",
                                         "heap:pages,thread_cache:False",
                                         "heap:pages,cross_stream:completed",
                                         "heap:pages,cross_stream:off,page_size_mb:2"};

// CACHALOT_TEST_SCALE times `count`, 1 at least.
inline std::size_t scaled(std::size_t count) {
  const char* text = std::getenv("CACHALOT_TEST_SCALE");
  const double scale = text == nullptr ? 1.0 : std::strtod(text, nullptr);
  return std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(count) * scale));
}

// Whether a program that fails is made shorter before it is printed: CACHALOT_TEST_SHORTEN=0 says no.
inline bool shortens() {
  const char* text = std::getenv("CACHALOT_TEST_SHORTEN");
  return text == nullptr || *text != '0';
}

}  // namespace cachalot
