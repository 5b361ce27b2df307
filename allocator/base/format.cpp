#include "base/format.h"

#include <charconv>
#include <cmath>

CACHALOT_BEGIN
namespace {

constexpr std::size_t kLongestNumber = 512;  // of a double with its digits behind the point: about 310 before it

template <typename Number, typename... Form>
void append_number(std::string& out, Number number, Form... form) {
  char digits[kLongestNumber];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, number, form...);
  out.append(digits, error == std::errc{} ? end : digits);
}

template <typename Integer>
void append_integer(std::string& out, Integer number, const Placeholder& place) {
  if (place.form != Placeholder::Form::padded) {
    if (place.form == Placeholder::Form::hexadecimal) out += "0x";
    append_number(out, number, place.form == Placeholder::Form::hexadecimal ? 16 : 10);
    return;
  }
  std::string digits;
  append_number(digits, number);
  if (digits.size() < place.number) out.append(place.number - digits.size(), '0');
  out += digits;
}

struct Append {
  std::string& out;
  const Placeholder& place;

  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(std::int64_t value) const { append_integer(out, value, place); }
  void operator()(std::uint64_t value) const { append_integer(out, value, place); }
  void operator()(double value) const {
    if (place.form == Placeholder::Form::fixed) {
      append_number(out, value, std::chars_format::fixed, static_cast<int>(place.number));
    } else if (const double size = std::fabs(value); size == 0 || (size >= 1e-4 && size < 1e16)) {
      append_number(out, value, std::chars_format::fixed);
    } else {
      append_number(out, value);
    }
  }
  void operator()(std::string_view value) const {
    out += place.form == Placeholder::Form::cut ? value.substr(0, place.number) : value;
  }
  void operator()(const void* value) const {
    out += "0x";
    append_number(out, reinterpret_cast<std::uintptr_t>(value), 16);
  }
};

}  // namespace

void append_formatted(std::string& out, std::string_view pattern, std::span<const FormatValue> values) {
  auto value = values.begin();
  read_pattern(
      pattern, [&](std::string_view text) { out += text; },
      [&](const Placeholder& place) {
        std::visit(Append{out, place}, (value++)->value());
      });
}

CACHALOT_END
