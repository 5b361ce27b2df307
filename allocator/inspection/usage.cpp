#include <algorithm>

#include "base/bytes.h"
#include "inspection/inspection.h"

CACHALOT_BEGIN

namespace {

void add_free_blocks(const BlockPool& pool, PoolUsage& usage) {
  for (const auto& arena : pool.arenas()) {
    const auto add = [&](const Block& block) {
      usage.free_bytes += block.size();
      usage.largest_free_bytes = std::max(usage.largest_free_bytes, block.size());
      ++usage.free_blocks;
    };
    arena->bins.for_each_of_at_least(PowerOfTwo(kBlockGranularity), add);
  }
}

}  // namespace

DeviceUsage Inspection::usage() {
  const DeviceLock lock(state_.mutex);
  parts_.caches.gather(lock);
  DeviceUsage usage{state_.counters.stats(), state_.counters.num_oom_rejections, std::vector<PoolUsage>(1)};
  PoolUsage& default_pool = usage.pools.front();
  default_pool.reserved_bytes = as_size(state_.counters.reserved_bytes());
  for (const BlockPool& pool : state_.default_pools) add_free_blocks(pool, default_pool);

  const PoolReserves::Figures& reserves = state_.pool_reserves.figures();
  bool has_sleepers = false;
  for (const auto& [id, pool] : parts_.pools.all(lock)) {
    PoolUsage of_pool;
    of_pool.pool = id;
    of_pool.tag = pool->tag;
    of_pool.is_asleep = pool->is_asleep;
    if (const auto found = reserves.find(id); found != reserves.end()) {
      of_pool.reserved_bytes = as_size(found->second.all.current);
    }
    if (!pool->is_asleep) {
      add_free_blocks(pool->small, of_pool);
      add_free_blocks(pool->large, of_pool);
    }
    usage.pools.front().reserved_bytes -= of_pool.reserved_bytes;
    has_sleepers = has_sleepers || pool->is_asleep;
    usage.pools.push_back(std::move(of_pool));
  }
  if (has_sleepers) add_asleep_bytes(usage, lock);
  return usage;
}

void Inspection::add_asleep_bytes(DeviceUsage& usage, const Held& held) const {
  for (const auto& [address, head] : state_.blocks.segments()) {
    const BlockPool& pool = head->arena->pool;
    if (!is_asleep(pool)) continue;
    Address end = address;
    for (const Block* block = head; !block->is_edge(); block = block->next) end = block->end();
    const auto of_pool = std::ranges::find(usage.pools, pool.id(), &PoolUsage::pool);
    of_pool->asleep_bytes += pool.growth->asleep_bytes(address, end, held);
  }
}

CACHALOT_END
