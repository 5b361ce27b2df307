// Inspection reports on one device's heap: statistics, fragmentation, snapshots, and the first broken invariant.
//
// Its functions take the lock themselves. Contracts are those of CachingAllocator's methods of the same names.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/events.h"
#include "cachalot/private_pool.h"
#include "cachalot/stats.h"
#include "growth/growth.h"
#include "growth/sleeping_pools.h"
#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"

CACHALOT_BEGIN

class Inspection {
 public:
  // The parts that it reads.
  struct Parts {
    HeapState& state;
    const PrivatePools& pools;
    CacheBridge& caches;
    const PendingFrees& frees;
    const SleepingPools& sleeping;
    std::vector<const Growth*> growths;
  };
  explicit Inspection(Parts parts) : parts_(std::move(parts)), state_(parts_.state) {}
  Inspection(const Inspection&) = delete;
  Inspection& operator=(const Inspection&) = delete;

  // Statistics.
  std::size_t memory_allocated();
  std::size_t memory_reserved() const;
  std::size_t max_memory_allocated();
  std::size_t max_memory_reserved() const;
  DeviceStats stats();
  AddedStats added_stats() const;
  Fragmentation fragmentation();
  DeviceUsage usage();
  std::size_t largest_available(bool starting_from_free_memory) const;
  void reset_peak_stats();
  void reset_accumulated_stats();

  // Snapshots.
  // Appends this device's trace and its segments, and records that a snapshot was taken: the next one's trace shows it.
  void snapshot_into(Snapshot& snapshot, PoolId pool, bool include_traces);
  // Returns nullopt if the tag has no pool here. `tag` and `device` are left to the caller.
  std::optional<TagMemory> tag_memory(PoolId id) const;

  // Tells the tracker of all memory that is held, and adds it to the observers.
  void add_segment_tracker(std::shared_ptr<SegmentTracker> tracker);

  // Soundness. Returns the first broken invariant, or "".
  std::string validate();
  // Returns the host memory of all tables; `allocator_bytes`: the size of the allocator's own object.
  std::size_t metadata_bytes(std::size_t allocator_bytes) const;

 private:
  void tell_of_segment(const Block& head, SegmentTracker& tracker, const Held& held) const CACHALOT_HELD;
  SegmentSnapshot picture(const Block& head, const Held& held) const CACHALOT_HELD;
  void add_asleep_bytes(DeviceUsage& usage, const Held& held) const CACHALOT_HELD;
  std::string validate_bins(const Held& held) const CACHALOT_HELD;
  std::string validate_caches(const Held& held) const CACHALOT_HELD;
  std::string validate_counters(const Held& held) const CACHALOT_HELD;

  const Parts parts_;
  HeapState& state_;
};

CACHALOT_END
