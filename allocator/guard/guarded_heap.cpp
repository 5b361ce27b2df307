#include "guard/guarded_heap.h"

#include "base/check.h"
#include "device/addresses.h"

CACHALOT_BEGIN

std::optional<BlockSizes> GuardedHeap::sizes(Address in_heap) const {
  const Block* const block = page_map_.find(in_heap);
  return block == nullptr ? std::nullopt : cachalot::sizes(heap_.state, *block, as_pointer(in_heap));
}

bool GuardedHeap::holds(const GuardedBlock& block) const {
  return sizes(block.heap_address()).has_value() || heap_.uncached.contains(as_pointer(block.heap_address()));
}

bool GuardedHeap::sleeps(const GuardedBlock& block) const {
  const Block* const found = find(block);
  return found != nullptr && cachalot::sleeps(heap_.state, *found, as_pointer(block.heap_address()));
}

void GuardedHeap::free(const GuardedBlock& block, bool was_waited_for) {
  const void* const raw = as_pointer(block.heap_address());
  Block* const found = find(block);
  if (found != nullptr) {
    if (!was_waited_for) {
      for (const KnownStream& stream : block.recorded) heap_.fast.record_stream(*found, raw, stream);
    }
    if (heap_.fast.deallocate(*found, raw)) return;
  }
  [[maybe_unused]] const bool was_uncached = heap_.uncached.deallocate(raw);
  CACHALOT_ASSERT(was_uncached);
}

void GuardedHeap::tell_watchers(Change::Action action, const GuardedBlock& block) {
  if (!heap_.state.observers.is_watched()) return;
  heap_.state.observers.tell_watchers({.action = action,
                                       .address = block.address,
                                       .bytes = block.bytes,
                                       .block_bytes = block.heap_bytes,
                                       .stream = block.stream.handle},
                                      action == Change::Action::alloc ? block.site : CallStack());
}

CACHALOT_END
