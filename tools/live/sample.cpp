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

namespace {

// Nothing for sums that the program has reset between.
std::optional<Rates> rates_between(const DeviceSample& before, const DeviceSample& now, double seconds) {
  const bool was_reset = now.allocations < before.allocations || now.frees < before.frees ||
                         now.allocated_sum_bytes < before.allocated_sum_bytes ||
                         now.device_allocations < before.device_allocations || now.device_frees < before.device_frees;
  if (was_reset || seconds <= 0) return std::nullopt;
  const auto rate = [&](std::uint64_t from, std::uint64_t to) { return static_cast<double>(to - from) / seconds; };
  return Rates{.allocations = rate(before.allocations, now.allocations),
               .frees = rate(before.frees, now.frees),
               .allocated_bytes = rate(before.allocated_sum_bytes, now.allocated_sum_bytes),
               .driver_calls = rate(before.device_allocations, now.device_allocations) +
                               rate(before.device_frees, now.device_frees)};
}

void measure(const ProcessSample& before, ProcessSample& now) {
  const double seconds = now.elapsed_s - before.elapsed_s;
  for (DeviceSample& device : now.devices) {
    const auto found = std::ranges::find(before.devices, device.index, &DeviceSample::index);
    if (found == before.devices.end()) continue;
    device.rates = now.refreshes == before.refreshes ? found->rates : rates_between(*found, device, seconds);
  }
}

}  // namespace

void RateMeter::measure(Sample& sample) {
  std::map<Key, ProcessSample> seen;
  for (ProcessSample& process : sample.processes) {
    const Key key(process.start, process.page);
    if (const auto found = last_.find(key); found != last_.end()) live::measure(found->second, process);
    seen.emplace(key, process);
  }
  last_ = std::move(seen);
}

}  // namespace cachalot::tools::live
