// Failures for want of memory of the process's allocator, for ctypes: a function that each calls, and the memory that explains
// it. What `error`, codes and texts mean: hooks.h. Thread-safe.
#pragma once

#include <cstddef>

#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"
#include "pytorch/export.h"

namespace cachalot {

// Lets the function of cachalot_plug_on_out_of_memory, whichever is set by then, know of the allocator's failures.
void tell_of_out_of_memory(CachingAllocator& allocator);

}  // namespace cachalot

extern "C" {

// CachalotOutOfMemory is an OutOfMemoryReport (out_of_memory.h), or what is known of a refusal by throw_on_cudamalloc_oom.
struct CachalotOutOfMemory {
  int device;
  int is_refusal;
  int has_pages;  // the heap is the page heap
  std::size_t requested_bytes;
  std::size_t segment_bytes;
  std::size_t allowed_bytes;
  std::size_t device_free_bytes;   // 0 of a refusal
  std::size_t device_total_bytes;  // 0 of a refusal
  cachalot::Stream stream;
  unsigned long long pool_first;
  unsigned long long pool_second;
};

// The function is called before the exception of each failure, on the thread that asked for memory, under no lock of the
// allocator, with the GIL: a thread that has let go of it takes it again. Threads that Python does not know call nothing, and
// none does once Python is shutting down. The exception that the thread raises in Python is kept. NULL: no function.
using CachalotOutOfMemoryCall = void (*)(const CachalotOutOfMemory*);
CACHALOT_EXPORT int cachalot_plug_on_out_of_memory(CachalotOutOfMemoryCall call, char* error, std::size_t capacity);

// The snapshot without traces, as cachalot_plug_json's: its size does not depend on how long history was recorded.
CACHALOT_EXPORT long cachalot_plug_segments_json(char* text, long capacity);
}
