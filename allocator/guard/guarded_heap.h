// GuardedHeap is the heap below the guard, as the guard uses it: it finds, frees and announces the heap's blocks that
// hold the guard's.
//
// Thread safety: any thread. Called without a lock of the guard's where the heap may call back: free.
#pragma once

#include <cstddef>
#include <optional>

#include "device_allocator.h"
#include "guard/guarded_block.h"
#include "inspection/blocks.h"

CACHALOT_BEGIN

class GuardedHeap {
 public:
  GuardedHeap(DeviceAllocator& heap, const PageMap& page_map) : heap_(heap), page_map_(page_map) {}

  // Returns the sizes of the heap's live block there; nullopt: without caching it knows of none.
  std::optional<BlockSizes> sizes(Address in_heap) const;
  // Whether the block is live in the heap, cached or not.
  bool holds(const GuardedBlock& block) const;
  // Whether the block's memory is asleep.
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

CACHALOT_END
