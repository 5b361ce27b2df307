// Limits of the process's allocator at run time (allocator_limits.h), for the Python package, by ctypes.
//
// Codes and `error` as in hooks.h; JSON as by cachalot_plug_json. Thread-safe. To be called without Python's lock (GIL): trim
// and reserve call the driver, and the soft limit's function takes the lock.
#pragma once

#include <cstddef>

#include "pytorch/export.h"

extern "C" {

// `limit` is a text of memory_limit.h.
CACHALOT_EXPORT int cachalot_plug_set_limit(const char* limit, int device, char* error, std::size_t capacity);
// Is called on the thread that crossed the soft limit, without a lock of the allocator. It keeps the exception that the
// thread raises in Python, and throws nothing.
using CachalotOnSoft = void (*)(int device, std::size_t held_bytes, std::size_t soft_limit_bytes);
// `on_soft` may be null with the limit "none".
CACHALOT_EXPORT int cachalot_plug_set_soft_limit(const char* limit, CachalotOnSoft on_soft, int device, char* error,
                                                 std::size_t capacity);
// `keep` and `size` are texts of a size, such as 2GiB or 1048576. trim returns the bytes that went back; negative after an
// error.
CACHALOT_EXPORT long cachalot_plug_trim(const char* keep, int device, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_reserve(const char* size, int device, char* error, std::size_t capacity);
// LimitFigures of a device; limits that are not set are null.
CACHALOT_EXPORT long cachalot_plug_limits_json(int device, char* text, long capacity);
}
