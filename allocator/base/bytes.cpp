#include "base/bytes.h"

#include <cctype>
#include <charconv>
#include <cmath>

#include "base/format.h"
#include "cachalot/errors.h"

namespace cachalot {

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
  const auto refuse = [&]() -> InvalidArgument {
    return InvalidArgument(formatted("'{:.60}' is not a size: bytes, or a number with KiB, MiB, GiB or TiB", text));
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !(number >= 0)) throw refuse();
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && std::isspace(static_cast<unsigned char>(unit.front()))) unit.remove_prefix(1);
  double scale = 1;
  if (unit == "KiB")
    scale = static_cast<double>(kKiB);
  else if (unit == "MiB")
    scale = static_cast<double>(kMiB);
  else if (unit == "GiB")
    scale = static_cast<double>(kGiB);
  else if (unit == "TiB")
    scale = static_cast<double>(kGiB) * 1024;
  else if (!unit.empty())
    throw refuse();
  const double bytes = number * scale;
  if (bytes >= 0x1p63 || bytes != std::floor(bytes)) throw refuse();
  return static_cast<std::size_t>(bytes);
}

}  // namespace cachalot
