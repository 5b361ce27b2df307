// The function-pointer plug: what torch.cuda.memory.CUDAPluggableAllocator and its optional hooks take, in every torch
// since 2.0, and what the Python package asks for by ctypes. pytorch/README.md says how to set them.
//
// Errors: running out of memory throws torch.OutOfMemoryError's C++ class when an adapter is loaded, else a
// std::runtime_error with the same text (a null pointer would be a tensor with data_ptr 0); other errors are thrown as
// they are. The functions that return a code throw nothing. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "cachalot/device.h"

// The exported functions of libcachalot_torch.so; everything else in it is hidden.
#define CACHALOT_EXPORT [[gnu::visibility("default")]]

extern "C" {

// `size` bytes for work on `stream`; null for 0 bytes.
CACHALOT_EXPORT void* cachalot_malloc(std::size_t size, int device, cachalot::Stream stream);
// Frees an address of cachalot_malloc, with the values of that call.
CACHALOT_EXPORT void cachalot_free(void* ptr, std::size_t size, int device, cachalot::Stream stream);

// The hooks, with the signatures of torch/csrc/cuda/CUDAPluggableAllocator.h. The pool hooks' types are C++'s.
CACHALOT_EXPORT void cachalot_init(int device_count);
CACHALOT_EXPORT void cachalot_reset();  // empty_cache
CACHALOT_EXPORT void cachalot_set_memory_fraction_hook(double fraction, int device);
CACHALOT_EXPORT void* cachalot_base_alloc(void* ptr, std::size_t* size);
CACHALOT_EXPORT void cachalot_record_stream_hook(void* ptr, cachalot::Stream stream);
CACHALOT_EXPORT void cachalot_begin_allocate_to_pool(int device, std::pair<unsigned long long, unsigned long long> pool,
                                                     std::function<bool(cachalot::Stream)> filter);
CACHALOT_EXPORT void cachalot_end_allocate_to_pool(int device, std::pair<unsigned long long, unsigned long long> pool);
CACHALOT_EXPORT void cachalot_release_pool(int device, std::pair<unsigned long long, unsigned long long> pool);

// For ctypes. `error` receives at most `capacity` bytes, the closing zero included. 0 is success, -2 that memory ran out, -3
// the caller's mistake, -1 any other error.
// Options on top of all others (options.h has the grammar), in place of those given before.
CACHALOT_EXPORT int cachalot_plug_configure(const char* options, char* error, std::size_t capacity);
// torch's own settings, in place of PYTORCH_CUDA_ALLOC_CONF and of those given before. Settings that cachalot does not
// know are left out, with a line on stderr.
CACHALOT_EXPORT int cachalot_plug_settings(const char* settings, char* error, std::size_t capacity);
// Sets whether the calling thread's allocations from now on lie in one physical handle each. Returns whether they did: 0
// or 1.
CACHALOT_EXPORT int cachalot_plug_set_contiguous(int contiguous, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_empty_cache(int device, char* error, std::size_t capacity);  // -1: every device
CACHALOT_EXPORT int cachalot_plug_reset_peak(int device, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_reset_accumulated(int device, char* error, std::size_t capacity);
// CachingAllocator's methods, on every device. The last two take a tag, or NULL and a pool's id.
CACHALOT_EXPORT int cachalot_plug_begin_tagged(const char* tag, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_end_tagged(const char* tag, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_release_physical(const char* tag, unsigned long long first, unsigned long long second,
                                                   int save, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_restore_physical(const char* tag, unsigned long long first, unsigned long long second,
                                                   char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_record_history(int enabled, long max_entries, char* error, std::size_t capacity);
// The fraction; negative after an error.
CACHALOT_EXPORT double cachalot_plug_memory_fraction(int device, char* error, std::size_t capacity);
// Looks at all memory under guard now. Returns how many reports there are since the last call; json("guard_reports") tells
// the calling thread what they are.
CACHALOT_EXPORT int cachalot_plug_check_memory(char* error, std::size_t capacity);
// hide_python_launcher's.
CACHALOT_EXPORT int cachalot_plug_hide_launcher(const char* file, char* error, std::size_t capacity);
// JSON of "stats", "fragmentation" (of the device), "snapshot" or "regions" (of all). Returns the bytes of the text, which is cut to
// `capacity`, its closing zero included; negative after an error, and `text` says what was wrong.
CACHALOT_EXPORT long cachalot_plug_json(const char* what, int device, char* text, long capacity);
}
