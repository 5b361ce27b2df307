#include "base/bytes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/format.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN
namespace {

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(text, result.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return result;
}

// The bytes of a unit. GPU tools say GB and mean GiB: decimal units are not told apart.
std::optional<double> scale_of(std::string_view unit) {
  while (!unit.empty() && std::isspace(static_cast<unsigned char>(unit.front()))) unit.remove_prefix(1);
  const std::string name = lower_case(unit);
  if (name.empty() || name == "b" || name == "byte" || name == "bytes") return 1;
  constexpr std::string_view kPrefixes = "kmgt";
  const std::size_t power = kPrefixes.find(name.front());
  const std::string_view rest = std::string_view{name}.substr(1);
  if (power == std::string_view::npos || (!rest.empty() && rest != "b" && rest != "ib")) return std::nullopt;
  return std::pow(1024.0, static_cast<double>(power + 1));
}

}  // namespace

std::string format_bytes(std::size_t bytes) {
  if (bytes <= kKiB) return formatted("{} bytes", bytes);
  const double value = static_cast<double>(bytes);
  if (bytes <= kMiB) return formatted("{:.2f} KiB", value / static_cast<double>(kKiB));
  if (bytes <= kGiB) return formatted("{:.2f} MiB", value / static_cast<double>(kMiB));
  return formatted("{:.2f} GiB", value / static_cast<double>(kGiB));
}

std::string format_count(std::uint64_t count, std::string_view what) {
  return formatted("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::size_t parse_bytes(std::string_view text) {
  const auto refusal = [&] {
    return InvalidArgument(
        formatted("'{:.60}' is not a size: give bytes, or a number with a unit, such as 512MiB, 24GiB, 24GB or 24G "
                  "(K, M, G and T count in steps of 1024, with or without B or iB)",
                  text));
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !(number >= 0)) throw refusal();
  const std::optional<double> scale = scale_of(text.substr(static_cast<std::size_t>(end - text.data())));
  if (!scale) throw refusal();
  const double bytes = *scale == 1 ? number : std::round(number * *scale);
  if (bytes >= 0x1p63 || bytes != std::floor(bytes)) throw refusal();
  return static_cast<std::size_t>(bytes);
}

CACHALOT_END
