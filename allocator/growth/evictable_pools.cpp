#include "growth/evictable_pools.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

void EvictablePools::make_evictable(PoolId id, std::string_view tag, const EvictOptions& options) {
  pools_.create_tag(id, tag);
  const DeviceLock lock(state_.mutex);
  pools_.existing(id, "make_evictable: could not find pool of id", lock).evictable = options;
}

void EvictablePools::make_resident(PoolId id) {
  const DeviceLock lock(state_.mutex);
  if (PrivatePool* const pool = pools_.find(id, lock)) pool->evictable.reset();
}

void EvictablePools::set_lost_content(PoolId id, bool is_lost) {
  const DeviceLock lock(state_.mutex);
  if (PrivatePool* const pool = pools_.find(id, lock)) pool->has_lost_content = is_lost;
}

// --- holds ----------------------------------------------------------------------------------------------------------------

bool EvictablePools::ensure(PoolId id, FunctionRef<void()> wake) {
  const bool is_asleep = hold(id);
  try {
    if (is_asleep) wake();
    return refill(id);
  } catch (...) {
    let_go(id);
    throw;
  }
}

// Returns whether the pool is asleep, or about to be.
bool EvictablePools::hold(PoolId id) {
  const DeviceLock lock(state_.mutex);
  PrivatePool& pool = pools_.existing(id, "ensure: could not find pool of id", lock);
  ++pool.hold_count;
  pool.ensured_at = ++ensures_;
  return pool.is_asleep;
}

// Returns true if content is lost that there is no function for.
bool EvictablePools::refill(PoolId id) {
  std::function<void(int)> function;
  {
    const DeviceLock lock(state_.mutex);
    PrivatePool& pool = pools_.existing(id, "ensure: could not find pool of id", lock);
    if (!std::exchange(pool.has_lost_content, false)) return false;
    if (pool.evictable) function = pool.evictable->refill;
  }
  if (!function) return true;
  try {
    function(state_.index);
  } catch (...) {
    set_lost_content(id, true);
    throw;
  }
  return false;
}

void EvictablePools::let_go(PoolId id) {
  const DeviceLock lock(state_.mutex);
  PrivatePool& pool = pools_.existing(id, "let_go: could not find pool of id", lock);
  CACHALOT_REQUIRE(pool.hold_count > 0, "let_go: {} is not held on device {}", name_of(pool), state_.index);
  --pool.hold_count;
}

// --- giving way -------------------------------------------------------------------------------------------------------------

PrivatePool* EvictablePools::least_important(const PrivatePool* but, int priority, const Set<PoolId>& unable,
                                             const Held& held) const {
  PrivatePool* least = nullptr;
  for (const auto& [id, pool] : pools_.all(held)) {
    const bool may = pool->evictable && pool->evictable->priority <= priority && pool.get() != but &&
                     pool->hold_count == 0 && pool->holds != 0 && !pool->is_asleep && !pools_.in_use(*pool, held);
    if (!may || unable.contains(id)) continue;
    const auto rank = [](const PrivatePool& each) { return std::tuple(each.evictable->priority, each.ensured_at); };
    if (least == nullptr || rank(*pool) < rank(*least)) least = pool.get();
  }
  return least;
}

// A pool that cannot be saved stays awake, and the next one is tried.
std::size_t EvictablePools::evict_one(const PrivatePool* but, int priority) {
  Set<PoolId> unable;
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  while (PrivatePool* const pool = least_important(but, priority, unable, growing)) {
    const EvictOptions options = *pool->evictable;
    try {
      sleeping_.require_may_sleep(pool->id, "eviction", growing);
      const SlowWorkRange range(state_.observers.slow_work_observer(growing), {SlowWork::Kind::evict, state_.index});
      if (const std::size_t bytes = sleeping_.put_to_sleep(*pool, options.sleep, growing); bytes != 0) return bytes;
    } catch (const OutOfMemory&) {      // of the host
    } catch (const InvalidArgument&) {  // the folder, or plain memory that is in use
    }
    unable.insert(pool->id);
  }
  return 0;
}

std::size_t EvictablePools::give_way(std::size_t bytes) {
  std::size_t given = level_.give_back(bytes);
  const Operation lock(state_.mutex);
  while (given < bytes) {
    const std::size_t evicted = pressure_.evict(nullptr, kAnyPriority, lock);
    if (evicted == 0) break;
    given += evicted;
  }
  return given;
}

CACHALOT_END
