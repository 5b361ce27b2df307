#include "live/page_figures.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "live/fixed_text.h"

CACHALOT_BEGIN

namespace {

std::uint64_t number_of(std::int64_t figure) { return figure < 0 ? 0 : static_cast<std::uint64_t>(figure); }

StatisticsPagePool to_page(const PoolUsage& pool) {
  StatisticsPagePool result{};
  result.id[0] = pool.pool.first;
  result.id[1] = pool.pool.second;
  result.is_asleep = pool.is_asleep ? 1 : 0;
  result.reserved_bytes = pool.reserved_bytes;
  result.used_bytes = pool.used_bytes();
  result.free_bytes = pool.free_bytes;
  result.free_blocks = pool.free_blocks;
  result.largest_free_bytes = pool.largest_free_bytes;
  result.asleep_bytes = pool.asleep_bytes;
  copy_cut(pool.tag, result.tag);
  return result;
}

void put_statistics(const DeviceStats& stats, StatisticsPageDevice& device) {
  device.reserved_bytes = number_of(stats.reserved_bytes.all.current);
  device.allocated_bytes = number_of(stats.allocated_bytes.all.current);
  device.requested_bytes = number_of(stats.requested_bytes.all.current);
  device.active_bytes = number_of(stats.active_bytes.all.current);
  device.peak_reserved_bytes = number_of(stats.reserved_bytes.all.peak);
  device.peak_allocated_bytes = number_of(stats.allocated_bytes.all.peak);
  device.peak_requested_bytes = number_of(stats.requested_bytes.all.peak);
  device.peak_active_bytes = number_of(stats.active_bytes.all.peak);
  device.blocks = number_of(stats.allocation.all.current);
  device.segments = number_of(stats.segment.all.current);
  device.allocations = number_of(stats.allocation.all.allocated);
  device.frees = number_of(stats.allocation.all.freed);
  device.allocated_sum_bytes = number_of(stats.allocated_bytes.all.allocated);
  device.freed_sum_bytes = number_of(stats.allocated_bytes.all.freed);
  device.device_allocations = number_of(stats.num_device_alloc);
  device.device_frees = number_of(stats.num_device_free);
  device.retries = number_of(stats.num_alloc_retries);
  device.ooms = number_of(stats.num_ooms);
  device.stream_waits = number_of(stats.num_sync_all_streams);
}

// The default pool comes first; of the private pools the largest are listed.
void put_pools(std::vector<PoolUsage> pools, StatisticsPageDevice& device) {
  device.free_bytes = device.free_blocks = device.largest_free_bytes = device.asleep_bytes = 0;
  for (const PoolUsage& pool : pools) {
    device.free_bytes += pool.free_bytes;
    device.free_blocks += pool.free_blocks;
    device.largest_free_bytes = std::max<std::uint64_t>(device.largest_free_bytes, pool.largest_free_bytes);
    device.asleep_bytes += pool.asleep_bytes;
  }
  const auto bytes_of = [](const PoolUsage& pool) { return pool.reserved_bytes + pool.asleep_bytes; };
  if (pools.size() > kStatisticsPagePools)
    std::ranges::stable_sort(pools.begin() + 1, pools.end(), std::greater{}, bytes_of);
  device.pool_count = static_cast<std::uint32_t>(pools.size());
  device.listed_pools = static_cast<std::uint32_t>(std::min(pools.size(), kStatisticsPagePools));
  std::ranges::transform(pools.begin(), pools.begin() + device.listed_pools, device.pools, to_page);
}

}  // namespace

PageFigures::PageFigures(const CachingAllocator& allocator)
    : allocator_(allocator),
      devices_(std::min(static_cast<std::size_t>(allocator.device_count()), kStatisticsPageDevices)) {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const DeviceProperties properties = allocator.device(static_cast<int>(i))->properties();
    StatisticsPageDevice& device = devices_[i];
    device.index = static_cast<std::int32_t>(i);
    device.total_bytes = properties.total_bytes;
    device.has_uuid = std::ranges::any_of(properties.uuid, [](unsigned char byte) { return byte != 0; }) ? 1 : 0;
    std::ranges::copy(properties.uuid, device.uuid);
    copy_cut(properties.name, device.name);
  }
}

const std::vector<StatisticsPageDevice>& PageFigures::take() {
  for (StatisticsPageDevice& device : devices_) {
    DeviceUsage usage = allocator_.device_usage(device.index);
    const LimitFigures limits = allocator_.limit_figures(device.index);
    device.limit_bytes = limits.limit_bytes.value_or(kStatisticsPageNoLimit);
    device.soft_limit_bytes = limits.soft_limit_bytes.value_or(kStatisticsPageNoLimit);
    put_statistics(usage.stats, device);
    device.oom_rejections = number_of(usage.num_oom_rejections);
    put_pools(std::move(usage.pools), device);
  }
  return devices_;
}

CACHALOT_END
