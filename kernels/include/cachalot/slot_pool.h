// Objects of one size that kernels take and give back, for work whose number of objects is known only inside the
// kernel.
//
//   cachalot::SlotPool pool(allocator, /*slots=*/100'000, sizeof(Node), stream);
//   build<<<grid, block, 0, stream>>>(pool.view());          // slot_pool.cuh has the kernel's side
//   if (pool.counters().exhausted != 0) …                    // some takes got null
//
// One allocation holds everything: counters, a bit a slot, the slots.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>

#include "cachalot/allocation.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/slot_pool_view.h"

namespace cachalot {

struct SlotPoolCounters {
  std::uint64_t taken = 0;       // slots handed out: live + given
  std::uint64_t given = 0;       // slots that came back
  std::uint64_t live = 0;        // slots that are out
  std::uint64_t high_water = 0;  // the most that were out at once; those just coming back may be among them
  std::uint64_t exhausted = 0;   // takes that got null
  std::uint64_t bad_gives = 0;   // gives of what is no slot of the pool, or was not taken
};

// A slot begins at a multiple of this: the widest load and store of a GPU's thread.
inline constexpr std::size_t kSlotAlignment = 16;

// Thread safety: any method from any thread. Kernels on any streams of the device may use the pool at once, if they
// come after its creation in the order of `stream` and are announced by record_stream.
class SlotPool {
 public:
  // At least one slot of at least one byte, all free; at most 2^60 bytes in all: else InvalidArgument. Waits for
  // `stream`, whose work may still use the memory that the pool gets; not while it captures. `allocator` outlives the
  // pool.
  SlotPool(CachingAllocator& allocator, std::size_t slots, std::size_t slot_bytes, Stream stream = nullptr,
           int device = 0);

  // For kernels, by value. Valid as long as the pool.
  const SlotPoolView& view() const { return view_; }
  std::size_t bytes() const { return bytes_; }  // of the allocation
  void record_stream(Stream stream) { memory_.get_deleter().allocator->record_stream(memory_.get(), stream); }

  // Waits for the work of the pool's stream and reads. Exact when no other stream is at work on the pool.
  SlotPoolCounters counters() const;

 private:
  const std::shared_ptr<Device> device_;
  const Stream stream_;
  SlotPoolView view_;
  std::size_t bytes_ = 0;
  Allocation memory_;
};

}  // namespace cachalot
