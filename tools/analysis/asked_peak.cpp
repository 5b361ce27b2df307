#include "tools/analysis/asked_peak.h"

#include <charconv>
#include <optional>

#include "base/check.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

std::optional<PeakKind> kind_of(const std::string& at) {
  if (at == "peak") return PeakKind::allocated_peak;
  if (at == "reserved") return PeakKind::reserved_peak;
  if (at == "oom") return PeakKind::out_of_memory;
  if (at == "end") return PeakKind::end;
  return std::nullopt;
}

std::size_t event_of(const std::string& path, const DeviceHistory& device, const std::string& at) {
  std::size_t event = 0;
  const auto [stopped, error] = std::from_chars(at.data(), at.data() + at.size(), event);
  CACHALOT_REQUIRE(error == std::errc() && stopped == at.data() + at.size(),
                   "--at: {} is not peak, reserved, oom, end or a number of events", fmt::to_string(Quoted{at}));
  CACHALOT_REQUIRE(event <= device.events.size(), "--at: {}: device {} has {} events, fewer than {}", path,
                   device.device, device.events.size(), event);
  return event;
}

}  // namespace

Peak asked_peak(const std::string& path, const DeviceHistory& device, std::span<const Allocation> allocations,
                const std::string& at) {
  const std::vector<std::uint64_t> blocks = block_bytes_of(device, allocations);
  const std::optional<PeakKind> kind = kind_of(at);
  if (!kind) return peak_after(device, allocations, blocks, event_of(path, device, at));
  std::optional<Peak> peak = find_peak(device, allocations, blocks, *kind);
  CACHALOT_REQUIRE(peak.has_value(), "--at oom: {}: no allocation of device {} failed", path, device.device);
  return std::move(*peak);
}

}  // namespace cachalot::tools
