// SegmentGrowth gets memory in segments from the device's malloc, or from a pool's segment provider: PyTorch's native
// allocator, step for step. AsyncGrowth and ManagedGrowth get them by other calls of the device.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/host_memory.h"
#include "growth/growth.h"
#include "growth/supply.h"
#include "heap/cache_bridge.h"
#include "heap/stream_clocks.h"

CACHALOT_BEGIN

class SegmentGrowth : public Growth {
 public:
  SegmentGrowth(HeapState& state, StreamClocks& clocks, StreamRegistry& streams, CacheBridge& caches,
                Recovery& recovery)
      : state_(state), clocks_(clocks), streams_(streams), caches_(caches), recovery_(recovery) {}

  Block* find(Request request, const Held& held) override CACHALOT_HELD;
  Block* obtain(Request request, const Context& context, Growing& growing) override CACHALOT_GROWING;
  void release_free(PrivatePool* owner, Reservation reservation, Growing& growing) override CACHALOT_GROWING;
  // The device waits for its work by itself while it takes a segment back (cudaFree), or does so in stream order.
  std::size_t trim(const TrimGoal& goal, Growing& growing) override CACHALOT_GROWING;
  // A 32nd of it, at least one segment, is for small requests. A segment is its first stream's.
  bool add_unused(std::size_t bytes, Growing& growing) override CACHALOT_GROWING;
  void give_back_everything() noexcept override;
  SharedMemory share(const Block& block, Address base, Growing& growing) override CACHALOT_GROWING;

 protected:
  // The driver's part, with the device's mutex released. nullopt: no memory. Throw CudaError.
  virtual std::optional<Address> malloc(std::size_t bytes, const KnownStream& stream) CACHALOT_REQUIRES(growth_lock);
  virtual void free(const Departing& segment) CACHALOT_REQUIRES(growth_lock);
  HeapState& state() { return state_; }

 private:
  struct Search;

  Block* grow(Request request, const Context& context, Growing& growing) CACHALOT_GROWING;
  std::optional<Address> ask_for_segment(std::size_t bytes, Request request, Growing& growing) CACHALOT_GROWING;
  Block& adopt(Address address, std::size_t bytes, Arena& arena, Growing& growing) CACHALOT_GROWING;
  std::size_t unused_segment_size(const Held& held) const CACHALOT_HELD;
  Block* take_from_ended(Request request, Growing& growing) CACHALOT_GROWING;
  void collect_garbage(Growing& growing) CACHALOT_GROWING;
  void keep_reservation(Vector<Block*>& released, const Held& held) const CACHALOT_HELD;
  bool release_oversize_for(Request request, Growing& growing) CACHALOT_GROWING;
  BlockPool& default_pool(PoolKind kind, const Held& held) const CACHALOT_HELD;
  void append_free_segments(const BlockPool& pool, Vector<Block*>& blocks,
                            Reservation reservation = Reservation::goes) const;
  void release(const Vector<Block*>& blocks, Growing& growing) CACHALOT_GROWING;
  void give_back(const Departing& segment) CACHALOT_REQUIRES(growth_lock);
  void return_to_heap(const Departing& segment, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  StreamClocks& clocks_;
  StreamRegistry& streams_;
  CacheBridge& caches_;
  Recovery& recovery_;
};

// AsyncGrowth gets segments from CUDA's own stream-ordered pool, cudaMallocAsync: the baseline that others are compared with.
// A segment goes back in stream order, without a wait for the device.
class AsyncGrowth final : public SegmentGrowth {
 public:
  using SegmentGrowth::SegmentGrowth;

  // Throws InvalidArgument: other processes cannot open memory of CUDA's pool.
  SharedMemory share(const Block& block, Address base, Growing& growing) override CACHALOT_GROWING;

 protected:
  std::optional<Address> malloc(std::size_t bytes, const KnownStream& stream) override CACHALOT_REQUIRES(growth_lock);
  void free(const Departing& segment) override CACHALOT_REQUIRES(growth_lock);

 private:
  bool captures(Stream stream);

  // Segments of the device's malloc: a stream that captures takes none of the pool.
  Set<Address> plain_ CACHALOT_GUARDED_BY(growth_lock);
};

// ManagedGrowth gets segments of managed memory, cudaMallocManaged, of which there may be more than the device has. The device
// refuses none of them for its own size, so the recovery begins where a limit, or the host, has no room.
class ManagedGrowth final : public SegmentGrowth {
 public:
  using SegmentGrowth::SegmentGrowth;

  std::string_view where_memory_lies() const override;
  // Throws InvalidArgument: other processes cannot open managed memory.
  SharedMemory share(const Block& block, Address base, Growing& growing) override CACHALOT_GROWING;

 protected:
  std::optional<Address> malloc(std::size_t bytes, const KnownStream& stream) override CACHALOT_REQUIRES(growth_lock);
};

CACHALOT_END
