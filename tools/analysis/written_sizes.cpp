#include "tools/analysis/written_sizes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string>
#include <system_error>

#include "tools/base/text_layout.h"

namespace cachalot::tools {
namespace {

using std::string_view_literals::operator""sv;

// Every unit counts in steps of 1024: of all these programs, whether they write GiB, GB or G.
struct SizeUnit {
  std::string_view name;
  int steps = 0;
};
constexpr std::array kUnits = {SizeUnit{"bytes", 0}, SizeUnit{"KiB", 1}, SizeUnit{"MiB", 2}, SizeUnit{"GiB", 3},
                               SizeUnit{"TiB", 4},   SizeUnit{"PiB", 5}, SizeUnit{"EiB", 6}, SizeUnit{"KB", 1},
                               SizeUnit{"kB", 1},    SizeUnit{"MB", 2},  SizeUnit{"GB", 3},  SizeUnit{"TB", 4},
                               SizeUnit{"K", 1},     SizeUnit{"M", 2},   SizeUnit{"G", 3},   SizeUnit{"T", 4},
                               SizeUnit{"B", 0}};

constexpr double kMostBytes = 18446744073709549568.0;  // the largest of a double in 64 bits

// Returns whether the commas part groups of three digits: "25,600,000", but not "1,23.41".
bool has_groups(std::string_view text) {
  std::string_view whole = text.substr(0, text.find('.'));
  for (std::size_t comma = whole.rfind(','); comma != std::string_view::npos; comma = whole.rfind(',')) {
    if (whole.size() - comma != 4) return false;
    whole = whole.substr(0, comma);
  }
  return !whole.empty() && whole.size() <= 3;
}

// Reads a number with commas at each third digit, or with a comma in place of the point.
std::optional<double> number_of(std::string text) {
  const std::size_t comma = text.rfind(',');
  const bool is_point = comma != std::string::npos && text.find('.') == std::string::npos && text.size() - comma != 4;
  if (is_point) text[comma] = '.';
  if (text.find(',') != std::string::npos && !has_groups(text)) return std::nullopt;
  std::erase(text, ',');
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

// A letter alone is a unit only where no word begins with it: "17.79G(". These follow it: "Used 21.95G of 15.48G hbm".
bool is_unit(const SizeUnit& unit, std::string_view text) {
  if (!text.starts_with(unit.name)) return false;
  const std::string_view behind = text.substr(unit.name.size());
  if (unit.name.size() > 1 || behind.empty() || std::isalpha(static_cast<unsigned char>(behind.front())) == 0)
    return true;
  constexpr std::array kFollowing = {"of"sv, "hbm"sv, "vmem"sv, "free"sv, "atthebottom"sv, "reserv"sv};
  return std::ranges::any_of(kFollowing, [&](std::string_view words) { return behind.starts_with(words); });
}

}  // namespace

std::uint64_t bytes_of(double number, int steps) {
  for (int i = 0; i < steps; ++i) number *= 1024;
  return static_cast<std::uint64_t>(std::min(number, kMostBytes));
}

std::optional<WrittenSize> size_at(std::string_view text) {
  std::size_t end = std::min(text.find_first_not_of("0123456789.,"), text.size());
  while (end > 0 && !is_digit(text[end - 1])) --end;  // the end of a sentence
  if (end == 0 || end > 40 || !is_digit(text.front())) return std::nullopt;
  const auto number = number_of(std::string(text.substr(0, end)));
  if (!number) return std::nullopt;
  for (const SizeUnit& unit : kUnits) {
    if (is_unit(unit, text.substr(end)))
      return WrittenSize{.bytes = bytes_of(*number, unit.steps), .length = end + unit.name.size(), .has_unit = true};
  }
  return WrittenSize{.bytes = bytes_of(*number, 0), .length = end, .has_unit = false};
}

std::optional<std::uint64_t> size_before(std::string_view text) {
  for (const SizeUnit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const std::string_view rest = text.substr(0, text.size() - unit.name.size());
    std::size_t begin = rest.find_last_not_of("0123456789.,");
    begin = begin == std::string_view::npos ? 0 : begin + 1;
    while (begin < rest.size() && !is_digit(rest[begin])) ++begin;  // the end of the sentence before
    auto size = size_at(text.substr(begin));
    for (; !size && begin < rest.size(); size = size_at(text.substr(begin)))  // "on GPU 1, 23.41GB"
      begin = std::min(rest.find(',', begin), rest.size() - 1) + 1;
    return size && begin + size->length == text.size() ? std::optional(size->bytes) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> sizes_at(std::string_view text, std::string_view between) {
  const auto first = size_at(text);
  if (!first || !text.substr(first->length).starts_with(between)) return std::nullopt;
  const std::string_view rest = text.substr(first->length + between.size());
  const auto second = size_at(rest);
  if (!second) return std::nullopt;
  const std::string_view number = text.substr(0, first->length);
  if (!is_digit(number.back())) return std::pair(first->bytes, second->bytes);
  const std::size_t unit = rest.substr(0, second->length).find_first_not_of("0123456789.,");
  const auto with_unit =
      size_at(std::string(number) +
              std::string(unit == std::string_view::npos ? "" : rest.substr(unit, second->length - unit)));
  return std::pair(with_unit ? with_unit->bytes : first->bytes, second->bytes);
}

std::optional<std::uint64_t> integer_at(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<std::uint64_t> bytes_of_shape(std::string_view text) {
  struct Type {
    std::string_view name;
    double bytes = 0;
  };
  constexpr std::array kTypes = {Type{"float", 4},      Type{"double", 8}, Type{"half", 2},   Type{"bfloat16", 2},
                                 Type{"int32", 4},      Type{"int64", 8},  Type{"uint8", 1},  Type{"int8", 1},
                                 Type{"bool", 1},       Type{"int16", 2},  Type{"uint16", 2}, Type{"complex64", 8},
                                 Type{"complex128", 16}};
  constexpr std::string_view kShape = "shape[";
  constexpr std::string_view kType = "]andtype";
  const std::size_t begin = text.find(kShape);
  const std::size_t end = begin == std::string_view::npos ? std::string_view::npos : text.find(']', begin);
  if (end == std::string_view::npos || !text.substr(end).starts_with(kType)) return std::nullopt;
  const std::string_view type = text.substr(end + kType.size());
  const auto found = std::ranges::find_if(kTypes, [&](const Type& one) { return type.starts_with(one.name); });
  if (found == kTypes.end()) return std::nullopt;
  double bytes = found->bytes;
  for (std::size_t at = begin + kShape.size(); at < end; ++at) {
    const auto length = integer_at(text.substr(at));
    if (!length) return std::nullopt;
    bytes *= static_cast<double>(*length);
    at = std::min(text.find_first_of(",]", at), end);
  }
  return bytes_of(bytes, 0);
}

}  // namespace cachalot::tools
