// SleepingPools return the memory of private pools to the device, and restore it at the same addresses.
//
// A handle that is asleep keeps its pages, homes and view, so that its blocks do not change; only its memory is gone.
// A driver call that fails leaves some handles asleep and some awake, the pool counts as asleep, and the next attempt
// continues from there.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "cachalot/private_pool.h"
#include "growth/page_growth.h"
#include "growth/supply.h"
#include "heap/limits.h"

CACHALOT_BEGIN

class SleepingPools {
 public:
  // `growth`: null if the heap has segments, which cannot sleep.
  SleepingPools(HeapState& state, const PageGrowth::Parts& parts, PendingFrees& frees, MemoryPressure& pressure,
                Supply& supply, PageGrowth* growth, HeapKind heap)
      : state_(state),
        pools_(parts.pools),
        clocks_(parts.clocks),
        caches_(parts.caches),
        recovery_(parts.recovery),
        handles_(parts.handles),
        saved_(parts.saved),
        frees_(frees),
        pressure_(pressure),
        supply_(supply),
        growth_(growth),
        heap_(heap) {}

  // These take the lock themselves. Each throws InvalidArgument in the name of `call` if the heap has segments, during a
  // capture, and for a pool with a segment provider.
  void require_pages(const char* call) const;
  // Returns false if there is no such pool.
  bool may_sleep(PoolId id, const char* call) const;
  // Contracts are those of CachingAllocator's methods. Return false if there is no such pool.
  bool release_physical(PoolId id, const SleepOptions& options);
  bool restore_physical(PoolId id);
  // Returns the pool, or null if there is none. Throws InvalidArgument as require_pages says.
  PrivatePool* require_may_sleep(PoolId id, const char* call, const Held& held) const CACHALOT_HELD;
  // release_physical of a pool that may sleep. Returns the bytes that the device has back.
  std::size_t put_to_sleep(PrivatePool& pool, const SleepOptions& options, Growing& growing) CACHALOT_GROWING;
  std::size_t awake_bytes(const PrivatePool& pool, const Held& held) const CACHALOT_HELD {
    return growth_ == nullptr ? 0 : bytes_of(handles_of(pool, /*asleep=*/false, held), held);
  }
  // Copies saved bytes of [from, from + bytes) to the host. Returns whether all of them were saved.
  bool read_saved(Address from, void* to, std::size_t bytes) const;

  // Returns the first broken invariant, or "".
  std::string validate(const Held& held) const CACHALOT_HELD;

 private:
  PageHeap& pages() const { return growth_->pages(); }
  PageDriver& driver() { return growth_->driver(); }
  std::size_t plain_bytes(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  Vector<HandleId> handles_of(const PrivatePool& pool, bool asleep, const Held& held) const CACHALOT_HELD;
  std::size_t bytes_of(const Vector<HandleId>& handles, const Held& held) const CACHALOT_HELD;

  void cancel_sleep(PrivatePool& pool, const Vector<HandleId>& saved, Growing& growing) CACHALOT_GROWING;
  void save_bytes(PrivatePool& pool, const Vector<HandleId>& handles, const SleepOptions& options,
                  Growing& growing) CACHALOT_GROWING;
  std::shared_ptr<SavedFile> file_memory(std::size_t bytes, const std::string& folder, const PrivatePool& pool,
                                         Growing& growing) CACHALOT_GROWING;
  void* pinned_memory(std::size_t bytes, const PrivatePool& pool, Growing& growing) CACHALOT_GROWING;
  void give_back(const Vector<HandleId>& handles, Growing& growing) CACHALOT_GROWING;

  bool wake_somehow(PrivatePool& pool, Held& held) CACHALOT_HELD;
  bool try_to_wake(PrivatePool& pool, Held& held) CACHALOT_HELD;
  bool wake_once(const PrivatePool& pool, Growing& growing) CACHALOT_GROWING;
  void forget_idle_sleepers(PrivatePool& pool, Growing& growing) CACHALOT_GROWING;
  bool create_again(const Vector<HandleId>& handles, Vector<MemoryHandle>& memory, std::optional<Ledger::Ask>& ask,
                    Growing& growing) CACHALOT_GROWING;
  void undo_creation(const Vector<HandleId>& handles, const Vector<MemoryHandle>& memory,
                     std::optional<Ledger::Ask>& ask, Growing& growing) CACHALOT_GROWING;
  void wake(const PrivatePool& pool, const Vector<HandleId>& sleepers, const Vector<MemoryHandle>& memory,
            std::optional<Ledger::Ask>& ask, Growing& growing) CACHALOT_GROWING;
  void map_again(const PrivatePool& pool, const Vector<HandleId>& sleepers, const Vector<MemoryHandle>& memory,
                 std::optional<Ledger::Ask>& ask, Growing& growing) CACHALOT_GROWING;
  Orphan view_of(HandleId id, const Held& held) const CACHALOT_HELD;
  void set_access(const Vector<HandleId>& handles, Growing& growing) CACHALOT_GROWING;
  void restore_saved_bytes(const PrivatePool& pool, Growing& growing) CACHALOT_GROWING;

  HeapState& state_;
  PrivatePools& pools_;
  StreamClocks& clocks_;
  CacheBridge& caches_;
  Recovery& recovery_;
  SharedHandles& handles_;
  SavedMemory& saved_;
  PendingFrees& frees_;
  MemoryPressure& pressure_;
  Supply& supply_;
  PageGrowth* const growth_;
  const HeapKind heap_;
};

CACHALOT_END
