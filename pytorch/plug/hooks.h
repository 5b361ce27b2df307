// The function-pointer plug: what torch.cuda.memory.CUDAPluggableAllocator and its optional hooks take, in every torch
// since 2.0, and what the Python package asks for by ctypes beside c_api.h, of which the library exports every function.
// pytorch/README.md says how to set them.
//
// Errors of cachalot_malloc, cachalot_free and the hooks: running out of memory throws torch.OutOfMemoryError's C++ class when an adapter is loaded, else a
// std::runtime_error with the same text (a null pointer would be a tensor with data_ptr 0); other errors are thrown as
// they are. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "cachalot/c_api.h"
#include "cachalot/device.h"

// The exported functions of libcachalot_torch.so; everything else in it is hidden.
#define CACHALOT_EXPORT [[gnu::visibility("default")]]

extern "C" {

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

// For ctypes, as everything of the library that is not PyTorch's. Functions return codes of c_api.h, or texts that are freed with
// cachalot_string_free, NULL on failure; cachalot_last_error() is the message then. They throw nothing.
//
// Options on top of CACHALOT_CONF (options.h has the grammar), in place of those that an earlier call gave.
CACHALOT_EXPORT int cachalot_plug_give_options(const char* options);
// torch's own settings, in place of PYTORCH_CUDA_ALLOC_CONF and of those given before. Settings that cachalot does not
// know are left out, with a line on stderr.
CACHALOT_EXPORT int cachalot_plug_settings(const char* settings);
// Sets the flags of cachalot_malloc_with_flags for the calling thread's allocations from now on; `before` is what they were.
CACHALOT_EXPORT int cachalot_plug_place(unsigned flags, unsigned* before);
// Sets whether Python's garbage is collected before an allocation fails, as it is from the beginning on.
CACHALOT_EXPORT int cachalot_plug_collect_garbage(int on);
// Tells whether new memory is pages, or would be if the allocator were made now: 1 or 0.
CACHALOT_EXPORT int cachalot_plug_takes_pages(int* answer);
// Makes the private pool's memory plain from now on, on each device that has the pool.
CACHALOT_EXPORT int cachalot_plug_set_plain(unsigned long long first, unsigned long long second);
// CachingAllocator::release_physical on every device, of a tag, or of NULL and a pool's id. `keep` is a Keep, and `folder` NULL
// without Keep::file.
CACHALOT_EXPORT int cachalot_plug_release_physical(const char* tag, unsigned long long first, unsigned long long second,
                                                   int keep, const char* folder);
// CachingAllocator::restore_physical of a pool, on every device.
CACHALOT_EXPORT int cachalot_plug_restore_pool_physical(unsigned long long first, unsigned long long second);
CACHALOT_EXPORT int cachalot_plug_record_history(int enabled, long max_entries);
CACHALOT_EXPORT int cachalot_plug_memory_fraction(int device, double* fraction);
// A callback for cachalot_set_soft_limit whose context is a function of Python's, void (*)(const cachalot_soft_limit_t*): it keeps the
// exception that the thread raises in Python, since memory may be allocated while Python looks for the handler of one.
CACHALOT_EXPORT void cachalot_plug_on_soft_limit(const cachalot_soft_limit_t* report, void* context);
// hide_python_launcher's.
CACHALOT_EXPORT int cachalot_plug_hide_launcher(const char* file);
}
