// Pinned host memory of the process, for ctypes: what CuPy's pinned allocator and the Python package ask for.
//
// Codes and `error` as in hooks.h; JSON as by cachalot_plug_json. Thread-safe.
#pragma once

#include <cstddef>

#include "pytorch/export.h"

extern "C" {

// At least `bytes` bytes of pinned memory in *buffer; null for 0 bytes. The first call of the process pins through GPU `device`.
CACHALOT_EXPORT int cachalot_plug_pinned_malloc(void** buffer, std::size_t bytes, int device, char* error,
                                                std::size_t capacity);
// What it returned. All work that uses the buffer is done, or on streams that were recorded. Null is ignored.
CACHALOT_EXPORT void cachalot_pinned_free(void* buffer);
// Work on `stream` (cudaStream_t) uses the buffer. Anything but a live buffer is the caller's mistake.
CACHALOT_EXPORT int cachalot_plug_pinned_record_stream(void* buffer, void* stream, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_pinned_empty_cache(char* error, std::size_t capacity);
// The most bytes that are pinned from now on; 0: no limit.
CACHALOT_EXPORT int cachalot_plug_pinned_set_limit(std::size_t bytes, char* error, std::size_t capacity);
// {"limit_bytes": …, "stats": to_json(DeviceStats)}; limit_bytes is 0 without one.
CACHALOT_EXPORT long cachalot_plug_pinned_json(char* text, long capacity);
}
