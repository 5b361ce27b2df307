// The text of an option in a message: not too long, whatever was given.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cachalot/version.h"

CACHALOT_BEGIN

inline std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 300;  // of a list that is longer
  return std::string(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "");
}

CACHALOT_END
