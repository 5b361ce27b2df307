/// @file
/// The pool of objects that kernels take and give back.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>

#include "cachalot/buffers.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/slot_pool_view.h"

CACHALOT_BEGIN_API

/// SlotPoolCounters say what kernels took and gave.
struct SlotPoolCounters {
  std::uint64_t taken = 0;  ///< slots handed out: live + given
  std::uint64_t given = 0;  ///< slots given back
  std::uint64_t live = 0;   ///< slots in use
  /// The most slots that were in use at once; slots just being given back may be among them.
  std::uint64_t high_water = 0;
  std::uint64_t exhausted = 0;  ///< takes that returned null
  std::uint64_t bad_gives = 0;  ///< gives of a pointer that is not a taken slot of the pool
};

/// The alignment of every slot: the widest load and store of a GPU's thread.
inline constexpr std::size_t kSlotAlignment = 16;

/// A SlotPool holds slots of one size, which kernels take and give back: for work whose number of
/// objects is known only inside the kernel.
///
///     cachalot::SlotPool pool(allocator, 100'000, sizeof(Node), stream);
///     build<<<grid, block, 0, stream>>>(pool.view());  // slot_pool.cuh has the kernel's side
///     if (pool.counters().exhausted != 0) ...          // some takes returned null
///
/// One allocation holds all of it: counters, a bit for each slot, and the slots.
///
/// Thread safety: every method may be called from any thread. Kernels on any streams of the device
/// may use the pool concurrently, if they come after its creation in the order of `stream` and
/// their streams were declared by record_stream.
class SlotPool {
 public:
  /// Makes a pool of `slots` free slots of `slot_bytes` bytes each, rounded up to kSlotAlignment.
  /// Requires: `allocator` outlives the pool; `stream` does not capture.
  /// Throws InvalidArgument for 0 slots, for slots of 0 bytes, and for more than 2^60 bytes in all;
  /// OutOfMemory.
  /// Blocks: until the work on `stream` is done, which may still use the memory.
  SlotPool(CachingAllocator& allocator, std::size_t slots, std::size_t slot_bytes,
           Stream stream = nullptr, int device = 0);

  /// Returns the pool as kernels use it; pass it by value. Valid as long as the pool exists.
  const SlotPoolView& view() const { return view_; }
  /// Returns the bytes of the allocation.
  std::size_t bytes() const { return bytes_; }
  /// Declares that work queued on `stream` uses the pool (CachingAllocator::record_stream).
  void record_stream(Stream stream) {
    memory_.get_deleter().allocator->record_stream(memory_.get(), stream);
  }

  /// Returns the counters; exact if no other stream is at work on the pool.
  /// Blocks: until the work on the pool's stream is done.
  SlotPoolCounters counters() const;

 private:
  const std::shared_ptr<Device> device_;
  const Stream stream_;
  SlotPoolView view_;
  std::size_t bytes_ = 0;
  Allocation memory_;
};

CACHALOT_END_API
