// Plain text in lines: labels with values, paragraphs, numbers with their nouns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::tools {

inline constexpr std::size_t kTextWidth = 100;  // of help and reports

// Returns "  label        value\n", the label padded to `width`.
std::string labelled_line(std::string_view label, std::string_view value, std::size_t width = 24);

// Returns the text in lines of at most kTextWidth columns, each ended by a newline; all but the first begin with `indent`
// spaces, which the caller has written for the first. Single newlines in the text are spaces; empty lines stay.
std::string wrapped(std::string_view text, std::size_t indent);

// Returns "once", "twice", "3 times".
std::string times_text(std::uint64_t count);

// Returns "12.3 %" of a part of 1.
std::string percent_text(double part);

// Returns "12,345".
std::string with_commas(std::uint64_t number);

}  // namespace cachalot::tools
