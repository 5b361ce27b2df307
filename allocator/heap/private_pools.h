// PrivatePools are the pools beside the default one: their users, which requests are redirected into them, and which of
// them lend their free blocks when memory runs out.
//
// Pools are erased only by a Growing, so that a Growing may walk over them and release the device's mutex in between. A
// pool that another thread adds meanwhile leaves iterators valid.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "base/host_memory.h"
#include "cachalot/private_pool.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

class PrivatePools {
 public:
  using ById = Map<PoolId, std::unique_ptr<PrivatePool>>;
  explicit PrivatePools(HeapState& state) : state_(state) {}
  PrivatePools(const PrivatePools&) = delete;
  PrivatePools& operator=(const PrivatePools&) = delete;
  // Sets the growths. Requires that there is no pool yet.
  void set_growth(const GrowthOfPools& growth) { growth_ = growth; }

  // These take the lock themselves. Contracts are those of CachingAllocator's methods of the same names.
  void create_or_retain_pool(PoolId id, std::shared_ptr<SegmentProvider> provider);
  void begin_allocate_to_pool(PoolId id, StreamFilter filter, RedirectFor reason);
  void end_allocate_to_pool(PoolId id);
  void begin_capture();
  void end_capture();
  void release_pool(PoolId id);
  int pool_use_count(PoolId id) const;
  void set_use_on_oom(PoolId id, bool use_on_oom);
  void set_no_split(PoolId id);
  void set_plain(PoolId id);
  void begin_tagged(PoolId id, std::string_view tag);
  void end_tagged(PoolId id, std::string_view tag);
  // Makes the pool of a tag again, if it was erased with its last block.
  void create_tag(PoolId id, std::string_view tag);
  bool is_capturing() const;

  // Has all pools follow the options' rules of splits.
  void apply_split_rules(const Held& held) CACHALOT_HELD;
  // Makes requests be for plain memory from now on, those of tags excepted, or no longer.
  void take_plain(bool on, const Held& held) CACHALOT_HELD;

  // Returns null if there is none.
  PrivatePool* find(PoolId id, const Held& held) const CACHALOT_HELD;
  // Throws InvalidArgument, which begins with `rule`, if there is none.
  PrivatePool& existing(PoolId id, const char* rule, const Held& held) const CACHALOT_HELD;
  const ById& all(const Held& /*held*/) const CACHALOT_HELD { return pools_; }
  void erase(PoolId id, Growing& growing) CACHALOT_GROWING;
  // Returns true if the pool has users, or a redirection that was not ended, which keeps it without users.
  bool in_use(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  // Returns the pools that lend, in the order in which they offered.
  const Vector<PoolId>& lenders(const Held& /*held*/) const CACHALOT_HELD { return lenders_; }

  // Returns the pool of the stream's requests on this thread, of plain memory where all requests are for that. Throws
  // InvalidArgument if that pool is asleep.
  BlockPool& pool_for(PoolKind kind, Stream stream, const Held& held) CACHALOT_HELD;
  // Returns true if the stream's requests are redirected, and frees that are done wait until they no longer are.
  bool holds_frees_back(Stream stream, const Held& held) const CACHALOT_HELD {
    const Redirect* const redirect = redirect_of(stream, held);
    return redirect != nullptr && redirect->reason != RedirectFor::requests;
  }
  bool thread_is_redirected(const Held& held) const CACHALOT_HELD;

  // Visits the default pools and the private ones, small and large, and those of plain memory.
  template <typename Visit>
  void for_each(Visit&& visit, const Held& held) const CACHALOT_HELD;
  template <typename Visit>
  void for_each(Visit&& visit, const Held& held) CACHALOT_HELD;

 private:
  struct Redirect {
    PrivatePool* pool;
    StreamFilter filter;
    RedirectFor reason;
  };

  PrivatePool& retain(PoolId id, const Held& held) CACHALOT_HELD;
  const Redirect* redirect_of(Stream stream, const Held& held) const CACHALOT_HELD;
  void update_mode(const Held& held) CACHALOT_HELD;
  void set_split_rules(PrivatePool& owner, const Held& held) CACHALOT_HELD;
  void set_split_rules(BlockPool& pool, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  GrowthOfPools growth_;
  ById pools_ CACHALOT_GUARDED_BY(device_lock);
  Vector<Redirect> redirects_ CACHALOT_GUARDED_BY(device_lock);
  Vector<PoolId> lenders_ CACHALOT_GUARDED_BY(device_lock);
};

template <typename Visit>
void PrivatePools::for_each(Visit&& visit, const Held& /*held*/) const {
  for (const BlockPool& pool : state_.default_pools) visit(pool);
  for (const BlockPool& pool : state_.plain_pools) visit(pool);
  for (const auto& [id, pool] : pools_) {
    visit(std::as_const(pool->small));
    visit(std::as_const(pool->large));
    for (const BlockPool& plain : pool->plain) visit(plain);
  }
}

template <typename Visit>
void PrivatePools::for_each(Visit&& visit, const Held& /*held*/) {
  for (BlockPool& pool : state_.default_pools) visit(pool);
  for (BlockPool& pool : state_.plain_pools) visit(pool);
  for (const auto& [id, pool] : pools_) {
    visit(pool->small);
    visit(pool->large);
    for (BlockPool& plain : pool->plain) visit(plain);
  }
}

CACHALOT_END
