// Three ways to bring batches to the GPU, work on them and bring them back. Each returns the microseconds of a step, and
// has given every result to `results`. Errors: std::runtime_error of CUDA's, and the allocators' own.
#pragma once

#include "cachalot/caching_allocator.h"
#include "cachalot/pinned_host_allocator.h"
#include "examples/async_transfer/batches.h"

namespace async_transfer {

// Ordinary memory: the host waits in each copy.
double pageable(const Job& job, cachalot::CachingAllocator& gpu, Results& results);

// Pinned anew at each step.
double pinned_at_each_step(const Job& job, cachalot::CachingAllocator& gpu, Results& results);

// From the pinned pool, a stream for each direction and one for the work, `buffers` > 0 batches under way: the host waits
// for the result of `buffers` steps ago.
double overlapped(const Job& job, cachalot::CachingAllocator& gpu, cachalot::PinnedHostAllocator& host, int buffers,
                  Results& results);

}  // namespace async_transfer
