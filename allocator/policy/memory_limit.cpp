#include "cachalot/options.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "policy/option_grammar.h"

CACHALOT_BEGIN

namespace {

constexpr std::string_view kFree = "free";

InvalidArgument refusal(std::string_view text) {
  return InvalidArgument(formatted(
      "'{:.60}' is not a limit of memory: give a size (20GiB), a part of the device (80%, above 0 and at most "
      "100), free, free less a size (free-2GiB), or none",
      text));
}

std::size_t bytes_in(std::string_view size, std::string_view text) {
  try {
    return parse_bytes(size);
  } catch (const InvalidArgument&) {
    throw refusal(text);
  }
}

// In the largest unit that has no remainder: parse_bytes reads it as the same number.
std::string exact_size(std::size_t bytes) {
  if (bytes != 0 && bytes % kGiB == 0) return formatted("{}GiB", bytes / kGiB);
  if (bytes != 0 && bytes % kMiB == 0) return formatted("{}MiB", bytes / kMiB);
  return formatted("{}", bytes);
}

}  // namespace

MemoryLimit MemoryLimit::parse(std::string_view text) {
  const std::string compact = without_spaces(text);
  const std::string_view value = compact;
  if (value == "none") return {};
  if (value == kFree) return {Base::free, 0, 0};
  if (value.substr(0, kFree.size()) == kFree) {
    if (value[kFree.size()] != '-') throw refusal(text);
    return {Base::free, 0, bytes_in(value.substr(kFree.size() + 1), text)};
  }
  if (!value.empty() && value.back() == '%') {
    const std::optional<double> percent = number_in<double>(value.substr(0, value.size() - 1));
    if (!percent || !(*percent > 0 && *percent <= 100)) throw refusal(text);
    return {Base::total, *percent, 0};
  }
  return of_bytes(bytes_in(value, text));
}

std::size_t MemoryLimit::in_bytes(std::size_t total_bytes, std::size_t free_bytes, std::size_t held_bytes) const {
  switch (base) {
    case Base::none:
      return kNone;
    case Base::bytes:
      return bytes;
    case Base::total:
      return static_cast<std::size_t>(percent / 100 * static_cast<double>(total_bytes));
    case Base::free:
      break;
  }
  return held_bytes + free_bytes - std::min(free_bytes, bytes);
}

std::string to_string(const MemoryLimit& limit) {
  switch (limit.base) {
    case MemoryLimit::Base::none:
      return "none";
    case MemoryLimit::Base::bytes:
      return exact_size(limit.bytes);
    case MemoryLimit::Base::total:
      return formatted("{}%", limit.percent);
    case MemoryLimit::Base::free:
      break;
  }
  return limit.bytes == 0 ? std::string(kFree) : formatted("{}-{}", kFree, exact_size(limit.bytes));
}

CACHALOT_END
