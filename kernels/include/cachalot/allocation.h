// Memory of a CachingAllocator that is freed by itself.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>

#include "cachalot/caching_allocator.h"

namespace cachalot {

// The free is in the order of the stream that the memory was allocated for; where the device does not let it, it comes
// later (deallocate_when_possible). `allocator` must be alive.
struct Deallocate {
  CachingAllocator* allocator = nullptr;
  void operator()(void* memory) const noexcept { allocator->deallocate_when_possible(memory); }
};
using Allocation = std::unique_ptr<void, Deallocate>;

// As CachingAllocator::allocate, and with its errors.
inline Allocation allocate_owned(CachingAllocator& allocator, std::size_t bytes, int device, Stream stream) {
  return Allocation(allocator.allocate(bytes, device, stream), Deallocate{&allocator});
}

}  // namespace cachalot
