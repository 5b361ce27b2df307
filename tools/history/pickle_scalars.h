// The numbers and texts of a pickle that are written in several ways. Each function throws BrokenPickle for others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/history/parts.h"
#include "tools/history/pickle_input.h"

namespace cachalot::tools {

// Reads an integer of so many bytes, in two's complement, of at most 64 bits.
Part long_integer(PickleInput& input, std::uint64_t bytes);

// Each reads a number that is written as text.
Part decimal(const PickleInput& input, std::string_view digits);
Part integer_or_boolean(const PickleInput& input, std::string_view digits);
Part long_decimal(const PickleInput& input, std::string_view digits);
Part real(const PickleInput& input, std::string_view digits);
std::uint64_t memo_index(const PickleInput& input, std::string_view digits);

// Decodes Python's raw-unicode-escape: Latin-1, and \uXXXX and \UXXXXXXXX for the rest.
std::string unescaped_unicode(const PickleInput& input, std::string_view line);
// Decodes Python 2's texts: in quotes, with the escapes that its repr writes.
std::string unescaped_string(const PickleInput& input, std::string_view line);

}  // namespace cachalot::tools
