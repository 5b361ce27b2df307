#include "api/front.h"

#include <exception>

#include "api/allocator_state.h"
#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"

CACHALOT_BEGIN

// ---- PlainFront ----------------------------------------------------------------------------------------------------------

void* PlainFront::allocate(const Request& request) {
  FastPath& fast = state_.at(request.device).fast;
  return request.place.is_anywhere() ? fast.allocate(request.bytes, request.stream)
                                     : fast.allocate_placed(request.bytes, request.stream, request.place);
}

void* PlainFront::allocate_at(std::size_t bytes, int device, Stream stream, void* address) {
  return state_.at(device).fast.allocate_at(bytes, stream, as_address(address));
}

// Memory that was allocated while caching was off is in no block.
void PlainFront::deallocate(void* ptr) {
  for (const auto& allocator : state_.devices()) {
    if (allocator->uncached.deallocate(ptr)) return;
  }
  throw not_live(ptr, PointerUse::free);
}

// The fast paths leave only the frees of an invalid device.
void PlainFront::deallocate(void* ptr, const Claim& claim) {
  state_.at(claim.device);
  if (ptr != nullptr) deallocate(ptr);
}

void PlainFront::record_stream(void* ptr, Stream stream) {
  if (Block* const block = find(ptr).block; block != nullptr) {
    DeviceAllocator& owner = state_.owner_of(*block);
    if (owner.fast.record_stream(*block, ptr, owner.streams.identify(stream))) return;
  }
  throw not_live(ptr, PointerUse::other);
}

Front::Found PlainFront::find(const void* ptr) const { return {state_.page_map().find(as_address(ptr)), ptr}; }

std::optional<std::size_t> PlainFront::requested_bytes(const void* ptr) const {
  const Block* const block = find(ptr).block;
  if (block == nullptr) return std::nullopt;
  const auto found = sizes(state_.owner_of(*block).state, *block, ptr);
  return found ? std::optional(found->requested) : std::nullopt;
}

InvalidArgument PlainFront::not_live(const void* ptr, PointerUse /*use*/) const {
  return InvalidArgument(not_live_message(ptr, place_in_heaps(state_, ptr).text));
}

bool PlainFront::pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) {
  return state_.at(device).checkpoints.pool_has_exactly(pool, live);
}

PoolCheckpoint PlainFront::checkpoint_pool(int device, PoolId pool) {
  return state_.at(device).checkpoints.checkpoint_pool(pool);
}

RestoreResult PlainFront::restore_pool(int device, const PoolCheckpoint& checkpoint) {
  return state_.at(device).checkpoints.restore_pool(checkpoint);
}

// ---- ForkedFront ---------------------------------------------------------------------------------------------------------

void ForkedFront::throw_inherited() const {
  state_.require_own_process();
  std::terminate();  // the front of no other process
}

// ----------------------------------------------------------------------------------------------------------------------------

PlaceInHeaps place_in_heaps(const AllocatorState& state, const void* ptr) {
  PlaceInHeaps place;
  for (std::size_t i = 0; i < state.devices().size() && place.text.empty(); ++i) {
    place = {.text = describe(state.devices()[i]->state, ptr), .device = i};
  }
  return place;
}

std::string not_live_message(const void* ptr, std::string_view place) {
  return formatted("invalid device pointer: {} is not a live allocation: {}", ptr,
                   place.empty() ? "this allocator does not hold it" : place);
}

CACHALOT_END
