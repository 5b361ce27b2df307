// The guard of one device's memory: canaries around allocated memory, poison in freed memory; and with debug on the
// books of allocations and frees with their callers, for the reports of callers' mistakes.
//
// It stands between CachingAllocator and DeviceAllocator, which sees larger blocks and receives frees later. So nothing
// of it depends on the heap, and there is nothing of it in the heap.
//
// A free waits for the block's streams, compares its canaries, poisons it and puts it into the quarantine: first
// in, first out, bounded in bytes. A block that leaves is compared with its poison, and only then freed. Blocks in
// quarantine count as allocated. It is emptied before the heap runs out of memory.
//
// Without canaries it keeps the books only: blocks are the heap's own, and a free goes to the heap at once, as without
// it.
//
// While a graph is captured on the device (begin_allocate_to_pool, RedirectFor::capture), or the block's stream
// captures, nothing may be waited for. Memory allocated then gets no canaries, since each replay of the graph uses it,
// no matter to whom it belongs; memory freed then goes to the heap at once, unchecked.
//
// Invariants: (1) each live block and each in quarantine is live in the heap, as a block of its own. (2) Memory is
// looked at or written by the guard only under GuardedMemory's mutex.
//
// Parts: GuardBooks (allocations and frees with their callers), GuardedMemory (patterns and kernels), Quarantine,
// GuardMistakes (reports of callers' mistakes), GuardCalls (numbers and stacks), GuardedHeap (the heap below). Each has
// its own lock, or none.
//
// Thread safety: any thread. Reports go to the log with no lock held; the heap is called without locks, except by
// put_to_sleep and restore, which call back only watchers.
// Errors: of the device (CudaError), of the heap. The block is then as it was, live; but if the poisoning failed, it is
// no longer checked. Exceptions of handlers come when the call is done; of allocate, then without the memory.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "api/device_allocator.h"
#include "api/front.h"
#include "cachalot/kernels.h"
#include "cachalot/private_pool.h"
#include "device/addresses.h"
#include "diagnostics/guard_books.h"
#include "diagnostics/guard_reports.h"
#include "diagnostics/guarded_memory.h"

CACHALOT_BEGIN

class DeviceGuard {
 public:
  // The checks that are on; at least one.
  struct Duties {
    bool canaries = true;
    bool debug = false;
  };
  DeviceGuard(DeviceAllocator& heap, const PageMap& page_map, Duties duties, KernelsFactory make_kernels,
              GuardLog& log);

  // Returns the heap's address of the user's `address`: it lies the front canary before it.
  Address in_heap(Address address) const { return address - front_; }

  // The place is that of the user's memory.
  void* allocate(std::size_t bytes, Stream stream, const AllocationPlace& place);
  using Claim = Front::Claim;
  // Returns false if it is not one of the live blocks. Throws InvalidArgument when the claim's bytes are not the
  // block's; its stream counts as a use.
  bool deallocate(const void* ptr, const std::optional<Claim>& claim = std::nullopt);
  bool record_stream(const void* ptr, Stream stream);
  // After the heap has heard of it. Blocks: until the work of the stream is done; its blocks are the default stream's
  // then.
  void stream_ends(Stream stream);
  // The bytes that were asked for; nullopt: it is not one of the live blocks.
  std::optional<std::size_t> requested(const void* ptr) const;
  // The block, live or freed, whose memory holds an address.
  using Sighting = GuardSighting;
  std::optional<Sighting> sight(const void* ptr) const;

  // With debug, the calling thread's mistake becomes a report: what it did with `ptr`.
  void report_mistake(GuardReport::Kind kind, const void* ptr, std::string message);
  // With debug, reports a call for a private pool that all its users have released; `message` names the call.
  void report_released_pool(PoolId pool, std::string_view message);
  // Notes that the pool has got a user, or lost one, for report_released_pool.
  void note_users(PoolId pool);

  // Compares everything that may be looked at now.
  void check();
  // Everything leaves the quarantine; nothing does during a capture. Returns whether anything was freed.
  bool drain();
  std::size_t quarantine_bytes() const { return quarantine_.bytes(); }

  // Around what takes memory away from blocks that stay: they are compared before it, and looked at again when they are
  // awake and have new canaries.
  void put_to_sleep(FunctionRef<void()> release_physical);
  void wake();
  // Restores a checkpoint. The restored blocks have no canaries, so they are not checked.
  RestoreResult restore(const PoolCheckpoint& checkpoint);

  std::string validate() const;
  std::size_t metadata_bytes() const;

 private:
  using Reports = GuardLog::Reports;

  // Reports the findings of the action to the handler, with no lock held, no matter how the action ends.
  template <typename Action>
  auto reporting(Action action);

  void* allocate_block(std::size_t bytes, Stream stream, const AllocationPlace& place);
  GuardedBlock adopt(void* raw, std::size_t bytes, std::size_t asked, const KnownStream& stream, CallStack stack);
  void undo_allocation(const void* ptr);

  void require_size(const void* ptr, std::size_t claimed);
  GuardBooks::Entry take(Address address, const std::optional<Claim>& claim, CallStack stack)
      CACHALOT_REQUIRES_SHARED(memory_.mutex);
  bool retire(Address address, const std::optional<Claim>& claim, CallStack stack, bool keep, Reports& found);
  // After a reset: there is nothing to look at.
  bool forget(Address address, const std::optional<Claim>& claim, CallStack stack);

  void compare_all(Reports& found) CACHALOT_REQUIRES(memory_.mutex);
  void mark_sleepers() CACHALOT_REQUIRES(memory_.mutex);
  bool forget_restored(Address address);
  void adopt_restored(Address address, const CallStack& stack);

  DeviceAllocator& heap_;
  const Duties duties_;
  const std::size_t front_;  // bytes before each block
  GuardLog& log_;
  GuardCalls calls_;
  GuardBooks books_;
  GuardMistakes mistakes_;
  GuardedHeap blocks_;
  GuardedMemory memory_;
  Quarantine quarantine_;
};

template <typename Action>
auto DeviceGuard::reporting(Action action) {
  return log_.tell_after([&] {
    Reports found;
    const auto result = [&] {
      try {
        return action(found);
      } catch (...) {
        log_.add(found);
        throw;
      }
    }();
    log_.add(found);
    return result;
  });
}

CACHALOT_END
