// The heap of the process for libraries other than torch: for their C callbacks, and for Python by ctypes. Memory comes from
// the allocator that serves torch, if that is enabled, and is counted by library (library_memory.h).
//
// Nothing here throws, and nothing needs torch or Python. After a failure, the calling thread asks
// cachalot_library_last_error what happened. Thread-safe.
#pragma once

#include <cstddef>

#include "cachalot/device.h"
#include "pytorch/export.h"
#include "pytorch/library_memory.h"

extern "C" {

// Sets `library` to the account of the library with this name, which lives as long as the process. Codes and `error`: hooks.h.
CACHALOT_EXPORT int cachalot_plug_library(const char* name, cachalot::LibraryMemory** library, char* error,
                                          std::size_t capacity);
// Returns `bytes` bytes on `device` for work on `stream`; null for 0 bytes, which is no failure, and on failure.
CACHALOT_EXPORT void* cachalot_library_malloc(cachalot::LibraryMemory* library, std::size_t bytes, int device,
                                              cachalot::Stream stream);
// Frees what cachalot_library_malloc returned to this library; null is ignored. The next user on the allocation's stream comes
// after all work that is queued there. Returns 0, or a code below 0. In a forked child it does nothing.
CACHALOT_EXPORT int cachalot_library_free(cachalot::LibraryMemory* library, void* ptr);
// The same for memory that work on `stream`, too, may use: the next user comes after that.
CACHALOT_EXPORT int cachalot_library_free_after(cachalot::LibraryMemory* library, void* ptr, cachalot::Stream stream);
// Writes the message of the calling thread's last failure in this file, cut to `capacity` bytes, the closing zero included.
// Returns its code: -2 memory ran out, -3 a mistake of the caller's, -1 any other error, 0 there was none. The failure is
// then forgotten.
CACHALOT_EXPORT int cachalot_library_last_error(char* text, std::size_t capacity);
// JSON of LibraryMemory::usage, a list of objects with LibraryUsage's fields. Returns as cachalot_plug_json.
CACHALOT_EXPORT long cachalot_plug_library_usage(char* text, long capacity);
}

namespace cachalot {

// Keeps code and message of a failed call for cachalot_library_last_error, in the calling thread: for C callbacks, which
// have no other way to tell.
void keep_library_error(int code, const char* message) noexcept;

}  // namespace cachalot
