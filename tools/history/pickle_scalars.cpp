#include "tools/history/pickle_scalars.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

void append_utf8(std::string& text, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12);
    } else {
      add(0xf0 | (code >> 18 & 7));
      add(0x80 | (code >> 12 & 0x3f));
    }
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

// False: not all of the text is one number.
template <typename Number, typename... How>
bool parse(std::string_view digits, Number& value, How... how) {
  const char* const end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, how...);
  return result.ec == std::errc{} && result.ptr == end;
}

std::uint32_t hexadecimal(const PickleInput& input, std::string_view digits, std::size_t count) {
  std::uint32_t value = 0;
  const bool is_whole = parse(digits, value, 16) && digits.size() == count;
  input.require(is_whole && value <= 0x10ffff, "{} is no character's number", Quoted{digits});
  return value;
}

}  // namespace

// Sizes and addresses have 64 bits, and an unsigned one of them has a ninth byte for its sign.
Part long_integer(PickleInput& input, std::uint64_t bytes) {
  input.require(bytes <= 9, "an integer of {} bytes: none here has more than 64 bits", bytes);
  if (bytes == 0) return Part::of_integer(0);
  std::uint64_t value = input.natural(std::min<std::size_t>(static_cast<std::size_t>(bytes), 8));
  if (bytes == 9) {
    input.require(input.byte() == 0, "an integer of more than 64 bits");
    return Part::of_natural(value);
  }
  const unsigned bits = 8 * static_cast<unsigned>(bytes);
  const bool is_negative = (value >> (bits - 1) & 1) != 0;
  if (is_negative && bits < 64) value |= ~std::uint64_t{0} << bits;
  return Part::of_integer(static_cast<std::int64_t>(value));
}

Part decimal(const PickleInput& input, std::string_view digits) {
  std::int64_t value = 0;
  if (parse(digits, value)) return Part::of_integer(value);
  std::uint64_t large = 0;
  input.require(parse(digits, large), "{} is not a whole number of 64 bits", Quoted{digits});
  return Part::of_natural(large);
}

Part integer_or_boolean(const PickleInput& input, std::string_view digits) {
  if (digits == "00" || digits == "01") return Part::of_boolean(digits == "01");
  return decimal(input, digits);
}

Part long_decimal(const PickleInput& input, std::string_view digits) {
  return decimal(input, digits.substr(0, digits.size() - (digits.ends_with('L') ? 1 : 0)));
}

Part real(const PickleInput& input, std::string_view digits) {
  double value = 0;
  input.require(parse(digits, value), "{} is not a number", Quoted{digits});
  return Part::of_real(value);
}

std::uint64_t memo_index(const PickleInput& input, std::string_view digits) {
  const std::optional<std::uint64_t> index = decimal(input, digits).natural();
  input.require(index.has_value(), "{} is no number of the memo", Quoted{digits});
  return *index;
}

std::string unescaped_unicode(const PickleInput& input, std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::size_t digits = !line.substr(i).starts_with("\\u") ? line.substr(i).starts_with("\\U") ? 8 : 0 : 4;
    if (digits == 0) {
      append_utf8(text, static_cast<unsigned char>(line[i]));
      continue;
    }
    append_utf8(text, hexadecimal(input, line.substr(i + 2, digits), digits));
    i += 1 + digits;
  }
  return text;
}

std::string unescaped_string(const PickleInput& input, std::string_view line) {
  const bool is_quoted =
      line.size() >= 2 && line.front() == line.back() && (line.front() == '\'' || line.front() == '"');
  input.require(is_quoted, "{} is not in quotes", Quoted{line});
  line = line.substr(1, line.size() - 2);
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      text += line[i];
      continue;
    }
    input.require(++i < line.size(), "a text ends with a backslash");
    const std::size_t escape = std::string_view("ntr").find(line[i]);
    if (line[i] == 'x') {
      text += static_cast<char>(hexadecimal(input, line.substr(i + 1, 2), 2));
      i += 2;
    } else {
      text += escape == std::string_view::npos ? line[i] : "\n\t\r"[escape];
    }
  }
  return text;
}

}  // namespace cachalot::tools
