#include "tools/live/sample.h"

#include <fmt/format.h>

#include <algorithm>

namespace cachalot::tools::live {
namespace {

double share_beside(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return 0;
  return std::clamp(1 - static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0);
}

}  // namespace

std::string PoolSample::name() const {
  if (!tag.empty()) return "tag " + tag;
  if (id == std::array<std::uint64_t, 2>{}) return "default";
  return fmt::format("pool {}.{}", id[0], id[1]);
}

double DeviceSample::internal_fragmentation() const { return share_beside(requested_bytes, active_bytes); }
double DeviceSample::external_fragmentation() const { return share_beside(largest_free_bytes, free_bytes); }
double DeviceSample::unused_share() const {
  const std::uint64_t whole = reserved_bytes + asleep_bytes;  // what is asleep counts as requested
  return whole < reserved_bytes ? 0 : share_beside(requested_bytes, whole);
}

}  // namespace cachalot::tools::live
