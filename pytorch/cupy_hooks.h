// The C functions that cupy.cuda.CFunctionAllocator calls, over library_hooks.h. CuPy passes no stream: they ask CuPy for its
// current one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pytorch/export.h"
#include "pytorch/library_memory.h"

extern "C" {

// Sets the function that returns CuPy's current stream of the calling thread: get_current_stream_ptr in
// cupy_backends.cuda.stream.__pyx_capi__. It comes before the first allocation.
CACHALOT_EXPORT void cachalot_cupy_use_stream(std::intptr_t (*current_stream)());
// As cachalot_library_malloc and cachalot_library_free, with CuPy's signatures. The calling thread holds the GIL, which is
// released while the allocator works.
CACHALOT_EXPORT void* cachalot_cupy_malloc(cachalot::LibraryMemory* library, std::size_t bytes, int device);
CACHALOT_EXPORT void cachalot_cupy_free(cachalot::LibraryMemory* library, void* ptr, int device);
}
