// The numbers and texts of a pickle that are written in several ways. Each function throws BrokenPickle for others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/pickle_input.h"
#include "tools/plain_document.h"

namespace cachalot::tools {

// Reads an integer of so many bytes, in two's complement, of at most 64 bits.
Value long_integer(PickleInput& input, std::uint64_t bytes);

// Each reads a number that is written as text.
Value decimal(const PickleInput& input, std::string_view digits);
Value integer_or_boolean(const PickleInput& input, std::string_view digits);
Value long_decimal(const PickleInput& input, std::string_view digits);
Value real(const PickleInput& input, std::string_view digits);
std::uint64_t memo_index(const PickleInput& input, std::string_view digits);

// Decodes Python's raw-unicode-escape: Latin-1, and \uXXXX and \UXXXXXXXX for the rest.
std::string unescaped_unicode(const PickleInput& input, std::string_view line);
// Decodes Python 2's texts: in quotes, with the escapes that its repr writes.
std::string unescaped_string(const PickleInput& input, std::string_view line);

}  // namespace cachalot::tools
