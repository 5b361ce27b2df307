// The collection of Python's reference cycles when memory runs out: tensors in them are freed by the garbage collector alone.
#pragma once

#include "cachalot/caching_allocator.h"

namespace cachalot {

// Collects Python's garbage before an allocation fails. Returns whether device memory became free.
//
// A thread that holds the GIL collects itself. For any other a thread of its own takes the GIL and collects, and the caller waits
// for at most five seconds: the holder of the GIL may be waiting for the caller. Does nothing without Python, and while Python
// shuts down. To be called without a lock of the allocator. Thread-safe.
bool collect_python_garbage(const CachingAllocator& allocator);

// Sets whether collect_python_garbage does anything: it does from the beginning on.
void set_collecting(bool on) noexcept;

}  // namespace cachalot
