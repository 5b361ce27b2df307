// GuardedMemory writes and compares the patterns of one device's blocks: canaries around live ones, poison in freed
// ones, which the Quarantine keeps.
//
// Lock: `mutex`. A thread that shares it checks and writes the memory of blocks that it has to itself; a thread that
// has it alone may check every block. It comes before the locks of GuardBooks and Quarantine, and is held across calls
// of the device. Thread safety: any thread, under `mutex` where a function says so.
// Errors: of the device (CudaError).
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/device_allocator.h"
#include "base/locks.h"
#include "cachalot/kernels.h"
#include "device/known_stream.h"
#include "diagnostics/guard_books.h"
#include "diagnostics/guard_reports.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

// GuardedHeap is the heap below the guard, as the guard uses it: it finds, frees and announces the heap's blocks that
// hold the guard's.
//
// Thread safety: any thread. Called without a lock of the guard's where the heap may call back: free.
class GuardedHeap {
 public:
  GuardedHeap(DeviceAllocator& heap, const PageMap& page_map) : heap_(heap), page_map_(page_map) {}

  // Returns the sizes of the heap's live block there; nullopt: without caching it knows of none.
  std::optional<BlockSizes> sizes(Address in_heap) const;
  // Returns whether the block is live in the heap, cached or not.
  bool holds(const GuardedBlock& block) const;
  // Returns whether the block's memory is asleep.
  bool sleeps(const GuardedBlock& block) const;
  // Frees the block. The heap waits for its recorded streams, unless the guard has: `was_waited_for`.
  void free(const GuardedBlock& block, bool was_waited_for);
  // Tells watchers, if there are any.
  void tell_watchers(Change::Action action, const GuardedBlock& block);

 private:
  Block* find(const GuardedBlock& block) const { return page_map_.find(block.heap_address()); }

  DeviceAllocator& heap_;
  const PageMap& page_map_;
};

class GuardedMemory {
 public:
  using Reports = GuardLog::Reports;

  GuardedMemory(DeviceAllocator& heap, KernelsFactory make_kernels);

  SharedMutex mutex;

  // Returns the stream on which work with the memory of this stream's blocks goes: the stream itself; if it has ended,
  // the default stream. Blocks: in that case, until the device is done.
  Stream stream_for_work(const KnownStream& stream);
  // False while the stream, or the allocator, captures a graph.
  bool may_wait(const KnownStream& stream);

  void write_canaries(GuardedBlock& block) CACHALOT_REQUIRES_SHARED(mutex);
  // Fills the block, whose pattern counts as unknown from then on, and returns the pattern that it has: poison, or samples if
  // kernels copy through the host. Blocks: until that is done, so that the block's streams may go.
  GuardedBlock::Pattern poison(GuardedBlock& block) CACHALOT_REQUIRES_SHARED(mutex);
  // Compares the canaries after all work on the block. Returns false if there are none, or the work may not be awaited.
  bool compare_canaries(GuardedBlock& block, Reports& found) CACHALOT_REQUIRES_SHARED(mutex);
  // Adds a report for each question that is answered with a difference.
  void compare(std::vector<GuardQuestion> questions, Stream stream, Reports& found) CACHALOT_REQUIRES_SHARED(mutex);

 private:
  Kernels& kernels(const PatternSpan& sample, Stream stream);
  bool wait_for_use(const KnownStream& user, Stream stream);

  const DeviceAllocator& heap_;
  const std::shared_ptr<Device> device_;
  const KernelsFactory make_kernels_;
  StreamOrder order_;
  SleepingMutex kernels_mutex_;
  std::unique_ptr<Kernels> kernels_ CACHALOT_GUARDED_BY(kernels_mutex_);  // made when first needed
};

// The most freed memory of a device that is kept: a late write comes mostly soon after the free, and this is 0.3 % of an 80 GB
// GPU. Tests alone set less, before they make an allocator.
extern std::size_t most_quarantined_bytes;

// Quarantine keeps the freed blocks of one device for a while: first in, first out, bounded in bytes. A block that
// leaves is compared with its poison, and only then freed. Nothing leaves while a graph is captured on the device.
//
// Thread safety: any thread; `mutex_` guards the list. It is taken after GuardedMemory's, and held for look-ups only.
// Errors: of the device and of the heap. Blocks that cannot be freed stay.
class Quarantine {
 public:
  using Reports = GuardLog::Reports;

  Quarantine(const DeviceAllocator& heap, GuardedHeap& blocks, GuardedMemory& memory, std::size_t most_bytes)
      : heap_(heap), blocks_(blocks), memory_(memory), most_bytes_(most_bytes) {}
  Quarantine(const Quarantine&) = delete;
  Quarantine& operator=(const Quarantine&) = delete;

  // Returns whether a block of `bytes` may be added; older ones leave for it.
  bool make_room(std::size_t bytes, Reports& found);
  // All leave. Returns whether anything was freed.
  bool empty_all(Reports& found);

  // Fills the block with poison and adds it. If that fails, the block stays the caller's. `memory`: that of the
  // constructor.
  void add(GuardedBlock& block, GuardedMemory& memory) CACHALOT_REQUIRES_SHARED(memory.mutex);
  // Takes the block of that user's address out, which is freed already.
  void forget(Address address);
  // Blocks that came just before their memory went to sleep are not compared any more.
  void mark_sleepers();
  // The questions point at blocks in here.
  void append_questions(std::vector<GuardQuestion>& questions, GuardedMemory& memory) CACHALOT_REQUIRES(memory.mutex);

  std::size_t bytes() const;
  // The block whose memory holds the address.
  std::optional<GuardSighting> sight(Address at) const;
  // `holds`: whether a block is live in the heap.
  std::string validate(const std::function<bool(const GuardedBlock&)>& holds) const;
  std::size_t metadata_bytes() const;

 private:
  using Blocks = std::list<GuardedBlock>;  // spliced: nothing is lost on the way

  bool shrink_to(std::size_t keep_bytes, Reports& found);
  Blocks take_oldest(std::size_t keep_bytes);
  void put_back(Blocks leaving);

  const DeviceAllocator& heap_;
  GuardedHeap& blocks_;
  GuardedMemory& memory_;
  const std::size_t most_bytes_;

  mutable SleepingMutex mutex_;
  Blocks kept_ CACHALOT_GUARDED_BY(mutex_);            // oldest first
  std::size_t bytes_ CACHALOT_GUARDED_BY(mutex_) = 0;  // footprints
};

CACHALOT_END
