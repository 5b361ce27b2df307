/// @file
/// The owner of an allocation: memory that is freed when it is destroyed.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <type_traits>

#include "cachalot/array_bytes.h"
#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// A Deallocate is the deleter of an Allocation. It frees in the order of the stream that the
/// memory was allocated for. If the device refuses the free, it is retried later
/// (CachingAllocator::deallocate_when_possible).
struct Deallocate {
  /// The allocator of the memory. Requires: it exists when the memory is freed.
  CachingAllocator* allocator = nullptr;
  /// Frees `memory`.
  void operator()(void* memory) const noexcept { allocator->deallocate_when_possible(memory); }
};
/// An Allocation owns memory of a CachingAllocator and frees it when it is destroyed.
using Allocation = std::unique_ptr<void, Deallocate>;

/// An OwnedArray owns elements of type T in memory of a CachingAllocator. It constructs none, and
/// frees the memory when it is destroyed.
template <typename T>
using OwnedArray = std::unique_ptr<T[], Deallocate>;

/// Allocates as CachingAllocator::allocate does. Returns the owner of the memory.
inline Allocation allocate_owned(CachingAllocator& allocator, std::size_t bytes, int device,
                                 Stream stream) {
  return Allocation(allocator.allocate(bytes, device, stream), Deallocate{&allocator});
}

/// Allocates `count` uninitialized elements as CachingAllocator::allocate does. Returns their
/// owner.
/// Throws InvalidArgument if a std::size_t does not hold their bytes.
template <typename T>
OwnedArray<T> allocate_array(CachingAllocator& allocator, std::size_t count, int device = 0,
                             Stream stream = nullptr) {
  static_assert(std::is_trivially_destructible_v<T>, "an OwnedArray calls no destructors");
  void* const memory = allocator.allocate(array_bytes(count, sizeof(T)), device, stream);
  return OwnedArray<T>(static_cast<T*>(memory), Deallocate{&allocator});
}

CACHALOT_END_API
