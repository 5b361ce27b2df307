// The two functions that only libcachalot.so has from here: those of libcachalot_torch.so throw (pytorch/plug/hooks.cpp).

#include <atomic>
#include <cstddef>

#include "api/device_allocator.h"
#include "c_api/last_error.h"
#include "c_api/seam.h"
#include "cachalot/c_api.h"
#include "cachalot/caching_allocator.h"
#include "device/addresses.h"

CACHALOT_BEGIN

// The CachedPath is the part of CachingAllocator's malloc and free that a thread's cache serves, for callers that want it inline:
// the C API. It takes no lock, throws nothing and calls nothing, so such a caller needs no stack frame.
class CachedPath {
 public:
  // Allocates as CachingAllocator::allocate does, or returns null: then that must serve.
  CACHALOT_FAST_PATH static void* allocate(const CachingAllocator& allocator, std::size_t bytes, int device,
                                           Stream stream) {
    if (static_cast<unsigned>(device) >= allocator.unguarded_devices_.size()) [[unlikely]]
      return nullptr;
    const FastPath& fast = allocator.unguarded_devices_[static_cast<std::size_t>(device)]->fast;
    if (!fast.has_hot_cache() || bytes - 1 >= SizeClass::kLargestBytes) return nullptr;
    return HotCache::allocate(bytes, StreamKey::of_handle(stream));
  }

  // Frees as CachingAllocator::deallocate; returns false if nothing was done, and that must serve.
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

namespace {

// Functions of their own, so that malloc and free need no stack frame where a thread's cache serves.
[[gnu::noinline]] void* allocate(std::size_t bytes, int device, Stream stream) noexcept {
  return value_or<void*>(nullptr, [&] {
    void* const ptr = process_allocator().allocate(bytes, device, stream);
    last_error = "";
    return ptr;
  });
}

[[gnu::noinline]] void deallocate(void* ptr, std::size_t bytes, int device, Stream stream) noexcept {
  guarded([&] {
    if (ptr != nullptr) process_allocator().deallocate(ptr, bytes, device, stream);
    last_error = "";
  });
}

}  // namespace

CACHALOT_END

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

void* cachalot_malloc(size_t size, int device, cudaStream_t stream) {
  if (const CachingAllocator* const made = made_allocator.load(std::memory_order_acquire)) {
    if (void* const ptr = CachedPath::allocate(*made, size, device, stream)) [[likely]] {
      last_error = "";
      return ptr;
    }
  }
  return allocate(size, device, stream);
}

void cachalot_free(void* ptr, size_t size, int device, cudaStream_t stream) {
  const CachingAllocator* const made = made_allocator.load(std::memory_order_acquire);
  if (made != nullptr && CachedPath::deallocate(*made, ptr, size, device, stream)) [[likely]] {
    last_error = "";
  } else {
    deallocate(ptr, size, device, stream);
  }
}
