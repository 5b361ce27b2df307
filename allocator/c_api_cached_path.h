// The CachedPath is the part of CachingAllocator's malloc and free that a thread's cache serves, for callers that want it inline:
// the C API. It takes no lock, throws nothing and calls nothing, so such a caller needs no stack frame.
#pragma once

#include <cstddef>

#include "cachalot/caching_allocator.h"
#include "device/addresses.h"
#include "device_allocator.h"

CACHALOT_BEGIN

class CachedPath {
 public:
  // As CachingAllocator::allocate; nullptr: that must serve.
  CACHALOT_FAST_PATH static void* allocate(const CachingAllocator& allocator, std::size_t bytes, int device,
                                           Stream stream) {
    if (static_cast<unsigned>(device) >= allocator.unguarded_devices_.size()) [[unlikely]]
      return nullptr;
    const FastPath& fast = allocator.unguarded_devices_[static_cast<std::size_t>(device)]->fast;
    if (!fast.has_hot_cache() || bytes - 1 >= SizeClass::kLargestBytes) return nullptr;
    return HotCache::allocate(bytes, StreamKey::of_handle(stream));
  }

  // As CachingAllocator::deallocate; false: nothing was done, and that must serve.
  CACHALOT_FAST_PATH static bool deallocate(const CachingAllocator& allocator, void* ptr, std::size_t bytes, int device,
                                            Stream stream) {
    if (static_cast<unsigned>(device) >= allocator.unguarded_devices_.size()) [[unlikely]]
      return false;
    const FastPath& fast = allocator.unguarded_devices_[static_cast<std::size_t>(device)]->fast;
    if (!fast.has_hot_cache()) return false;  // before the block is looked up, which that would do again
    Block* const block = allocator.unguarded_map_->find(as_address(ptr));
    if (block == nullptr || BlockSlab::owner_of(*block) != device) [[unlikely]]
      return false;
    return HotCache::deallocate(*block, ptr, bytes, stream);
  }
};

CACHALOT_END
