#include "base/json_writer.h"

#include <charconv>
#include <cmath>

CACHALOT_BEGIN
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// The bytes of the UTF-8 character that `text` begins with; 0: it begins with none. RFC 3629, table of section 4.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : 0); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return is_continuation(byte(1)) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool too_long = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return is_continuation(byte(1)) && is_continuation(byte(2)) && !too_long && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool too_long = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) > 0x8F;
    const bool continues = is_continuation(byte(1)) && is_continuation(byte(2)) && is_continuation(byte(3));
    return continues && !too_long && !beyond ? 4 : 0;
  }
  return 0;
}

void append_escaped(std::string& out, char character) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (const std::size_t at = kEscaped.find(character); at != std::string_view::npos) {
    out += '\\';
    out += kLetters[at];
  } else if (const auto code = static_cast<unsigned char>(character); code < 0x20) {
    out += "\\u00";
    out += kDigits[code / 16];
    out += kDigits[code % 16];
  } else {
    out += character;
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 1) {
      append_escaped(out, text.front());
    } else {
      out += bytes == 0 ? kReplacement : text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  out += '"';
}

void append_json_number(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  char digits[32];
  const char* const end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";  // stays a real number for its readers
}

CACHALOT_END
