#include "inspection/blocks.h"

#include "base/format.h"

CACHALOT_BEGIN

AddressRange segment_of(const Block& block) {
  const Block* head = &block;
  while (!head->prev->is_edge()) head = head->prev;
  const Block* last = &block;
  while (!last->next->is_edge()) last = last->next;
  return {head->address, last->end() - head->address};
}

std::optional<AddressRange> base_allocation(const HeapState& state, const Block& block, const void* ptr) {
  const DeviceLock lock(state.mutex);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  return segment_of(block);
}

std::optional<BlockSizes> sizes(const HeapState& state, const Block& block, const void* ptr) {
  const DeviceLock lock(state.mutex);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  return BlockSizes{block.requested_bytes(), block.size()};
}

bool sleeps(const HeapState& state, const Block& block, const void* ptr) {
  const DeviceLock lock(state.mutex);
  return HeapState::is_live(block, ptr) && is_asleep(block.arena->pool);
}

std::string describe(const HeapState& state, const void* ptr) {
  const DeviceLock lock(state.mutex);
  const Address address = as_address(ptr);
  const Block* block = state.blocks.segment_at(address);
  if (block == nullptr) return "";
  while (block->end() <= address) block = block->next;
  if (block->is_unused() || block->is_cached()) return "its memory is free (already freed?)";
  if (block->has(Block::kPending) || block->has(Block::kFreeing))
    return "it was already freed and waits for other streams";
  return formatted("it lies inside the allocation of {} bytes at {:#x}", block->requested_bytes(), block->address);
}

CACHALOT_END
