// Text in an array of fixed size.
#pragma once

#include <cstddef>
#include <string_view>

#include "cachalot/version.h"

CACHALOT_BEGIN

// Copies as much as there is room for, and a zero behind it.
template <std::size_t Size>
void copy_cut(std::string_view text, char (&to)[Size]) {
  to[text.copy(to, Size - 1)] = '\0';
}

CACHALOT_END
