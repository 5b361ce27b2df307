#include "growth/recovery.h"

CACHALOT_BEGIN

Block* Recovery::borrow(Request request, const Held& held) {
  if (request.pool().owner() != nullptr) return nullptr;
  for (const PoolId id : pools_.lenders(held)) {
    PrivatePool* owner = pools_.find(id, held);
    if (owner == nullptr || owner->is_asleep) continue;
    Request borrowed = request;
    BlockPool& pool = request.pool().kind() == PoolKind::small ? owner->small : owner->large;
    borrowed.arena = &streams_.arena_of(pool, request.stream(), held);
    // A growth that cannot tell where its handles end has none for a request in one handle.
    if (request.contiguous && !pool.growth->may_scatter()) continue;
    if (Block* block = pool.growth->find(borrowed, held)) return block;
  }
  return nullptr;
}

void Recovery::release_default_pools(Growing& growing) { state_.small(growing).growth->release_free(nullptr, growing); }

bool Recovery::may_erase(const PrivatePool& pool, const Held& held) const {
  const bool sleeps_on = pool.is_asleep && !pool.tag.empty();
  return pool.holds == 0 && !pools_.in_use(pool, held) && !sleeps_on && !pool.large.growth->has_leftovers(pool, held);
}

void Recovery::release_unused_pools(PoolId id, Growing& growing) {
  if (state_.capturing(growing)) return;
  const PrivatePools::Map& pools = pools_.all(growing);
  for (auto next = pools.begin(); next != pools.end();) {
    const auto entry = next++;
    PrivatePool& pool = *entry->second;
    if (pools_.in_use(pool, growing) || (!id.is_default() && entry->first != id)) continue;
    if (!id.is_default()) frees_.synchronize(&pool, growing);
    pool.large.growth->release_free(&pool, growing);
    if (may_erase(pool, growing)) pool.large.growth->release_addresses(pool, growing);
    if (may_erase(pool, growing)) pools_.erase(entry->first, growing);  // it may have found a user meanwhile
  }
}

void Recovery::recover(Growing& growing) {
  synchronize_frees(growing);
  state_.drain_caches(growing);
  release_default_pools(growing);
  release_unused_pools({}, growing);
  state_.ledger.retried(PoolKind::small, growing);  // of neither kind
}

void Recovery::empty_cache(PoolId id, CacheBridge& caches) {
  const DeviceLock lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  caches.gather(growing);
  state_.observers.observe({.action = Change::Action::empty_cache, .pool = id}, growing);
  state_.drain_caches(growing);
  if (id.is_default() && !state_.capturing(growing) && !pools_.thread_is_redirected(growing)) {
    synchronize_frees(growing);
    release_default_pools(growing);
  }
  release_unused_pools(id, growing);
  if (!state_.immortal_streams) streams_.forget_streams_without_memory(growing);
}

CACHALOT_END
