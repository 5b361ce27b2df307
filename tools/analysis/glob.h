// Patterns of file names and functions: `*` stands for any characters, everything else for itself.
#pragma once

#include <cstddef>
#include <string_view>

namespace cachalot::tools {

// Returns whether the pattern describes the whole text. Takes time of at most the product of the two lengths.
constexpr bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // the last one that was passed
  std::size_t behind_star = 0;                // where the text goes on that this star does not stand for
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      behind_star = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++behind_star;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace cachalot::tools
