#include "cachalot/allocator_sharing.h"

#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"
#include "groups/allocator_state.h"

CACHALOT_BEGIN

std::size_t AllocatorSharing::handle_count(const void* ptr) const {
  if (const auto [block, start] = state_.find(ptr); block != nullptr) {
    if (const auto count = state_.owner_of(*block).sharing.handle_count(*block, start)) return *count;
  }
  state_.throw_not_live(ptr, AllocatorState::PointerUse::other);
}

// The canary before the allocation is shared as well: it lies in the same handle, or in one that has to be opened anyway.
SharedMemory AllocatorSharing::share(const void* ptr) {
  if (const auto [block, start] = state_.find(ptr); block != nullptr) {
    if (auto memory = state_.owner_of(*block).sharing.share(*block, start)) {
      const std::size_t canary = as_address(ptr) - as_address(start);
      memory->offset += canary;
      memory->bytes -= canary;
      return *std::move(memory);
    }
  }
  state_.throw_not_live(ptr, AllocatorState::PointerUse::other);
}

SharedMemory AllocatorSharing::share_contiguous(const void* ptr) {
  const std::size_t handles = handle_count(ptr);
  CACHALOT_REQUIRE(
      handles == 1,
      "the allocation at {} lies in {} handles, not in one: ask for it as contiguous (CACHALOT_CONTIGUOUS)", ptr,
      handles);
  return share(ptr);
}

void* AllocatorSharing::open_shared(const SharedMemory& memory, int device) {
  return as_pointer(state_.at(device).sharing.open_shared(memory));
}

void AllocatorSharing::close_shared(void* base) {
  for (const auto& allocator : state_.devices()) {
    if (allocator->sharing.close_shared(as_address(base))) return;
  }
  throw InvalidArgument(formatted("{} is not open: open_shared did not return it, or it was closed already", base));
}

void AllocatorSharing::enable_peer_access(int device, int peer) {
  DeviceAllocator& user = state_.at(device);
  DeviceAllocator& owner = state_.at(peer);
  CACHALOT_REQUIRE(device != peer, "peer access of device {} to itself: a peer is another device", device);
  user.sharing.enable_access_to(peer);
  owner.sharing.open_to(device);
}

CACHALOT_END
