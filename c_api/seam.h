// The seam between c_api.cpp, which is compiled into each library that exports the C API, and such a library, which says how the
// allocator of the process is made and configured: environment_allocator.cpp for libcachalot.so, and
// pytorch/plug/process_allocator.cpp for libcachalot_torch.so. A library has a cachalot_malloc and a cachalot_free of its own, too.
#pragma once

#include <atomic>
#include <string_view>

#include "cachalot/caching_allocator.h"

namespace cachalot {

// The allocator, once make_allocator has made it: outside of what makes it, so that a malloc gets it by one load. Never destroyed:
// memory may be freed by destructors that run after its own would.
extern constinit std::atomic<CachingAllocator*> made_allocator [[gnu::visibility("hidden")]];

// Makes the allocator, or returns the one that another thread made meanwhile. Defined by the library.
// While the allocator cannot be made, each call tries again and throws the reason: BadEnvironment, InvalidArgument or CudaError. A
// forked child of a process that has not made it makes its own. Thread-safe.
CachingAllocator& make_allocator();

// Applies options as cachalot_configure. Defined by the library.
// Throws InvalidArgument; nothing has changed then. Thread-safe.
void configure_allocator(std::string_view options);

// Returns what the flags of cachalot_malloc_with_flags ask for. Throws InvalidArgument for an unknown flag.
AllocateOptions options_of_flags(unsigned flags);

// Returns the allocator of the process, which is made at first use.
inline CachingAllocator& process_allocator() {
  CachingAllocator* const made = made_allocator.load(std::memory_order_acquire);
  if (made != nullptr) [[likely]]
    return *made;
  return make_allocator();
}

}  // namespace cachalot
