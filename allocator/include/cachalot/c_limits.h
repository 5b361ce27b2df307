/** @file
 * Limits at run time, in C: at most how much memory the allocator holds, and how much beforehand.
 *
 *     cachalot_set_limit("80%", 0);
 *     cachalot_reserve((size_t)8 << 30, 0);
 *
 * These functions are part of libcachalot.so; cachalot/c_api.h says what holds for all of them.
 * Held memory is allocated and cached memory: cachalot_memory_reserved. */
#ifndef CACHALOT_C_LIMITS_H_
#define CACHALOT_C_LIMITS_H_

#include <stddef.h>

#include "cachalot/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Stands for no limit in cachalot_limits_t. */
#define CACHALOT_NO_LIMIT ((size_t)-1)

/** Limits the bytes held from `device`: "20GiB", "80%" (of its total memory), "free-2GiB" (the
 * memory free now and that held, less 2 GiB), "free" or "none". Beside
 * cachalot_set_memory_fraction; of the two limits the lower one holds.
 * Growth beyond it fails with CACHALOT_E_OUT_OF_MEMORY, and the message names the limit.
 * If more is held already, cached memory is given back as by cachalot_trim. Allocated memory stays
 * valid.
 * Fails with CACHALOT_E_INVALID_ARGUMENT for another text, and for NULL. */
CACHALOT_API int cachalot_set_limit(const char* limit, int device);

/** Describes how the allocator came to hold more than the soft limit. */
typedef struct cachalot_soft_limit_t {
  int device;              /**< index of the device */
  size_t held_bytes;       /**< held from the device, those of the allocation included */
  size_t soft_limit_bytes; /**< the soft limit */
} cachalot_soft_limit_t;

/** Called when held memory comes to exceed the soft limit, on the thread whose call made it so,
 * after the memory was allocated and before that call returns. No lock is held: it may call
 * cachalot, to free or to trim. `report` is valid during the call. */
typedef void (*cachalot_soft_limit_callback)(const cachalot_soft_limit_t* report, void* context);

/** Sets the bytes above which `callback` is called with `context`: once, until held memory has been
 * at or below them again. `limit` is a text as for cachalot_set_limit.
 * "none" lifts the soft limit; `callback` may then be NULL.
 * A callback that is replaced may still be running on another thread.
 * Fails with CACHALOT_E_INVALID_ARGUMENT for a bad text and for a callback that is NULL. */
CACHALOT_API int cachalot_set_soft_limit(const char* limit, cachalot_soft_limit_callback callback,
                                         void* context, int device);

/** Has the limits of one device and the bytes that count against them, at one moment. */
typedef struct cachalot_limits_t {
  size_t limit_bytes;       /**< the lowest limit of held bytes, or CACHALOT_NO_LIMIT */
  size_t soft_limit_bytes;  /**< the soft limit, or CACHALOT_NO_LIMIT */
  size_t held_bytes;        /**< held from the device, in use or cached */
  size_t reservation_bytes; /**< bytes from cachalot_reserve that no stream has used yet */
} cachalot_limits_t;

/** Fills `*out`. On error `*out` stays as it was. `out` must not be NULL. */
CACHALOT_API int cachalot_limit_figures(int device, cachalot_limits_t* out);

/** Gives cached memory back to `device` as long as at least `keep` bytes stay held, without a wait
 * for the device's work: with heap:pages, memory whose work is done; with heap:segments, segments
 * by cudaFree, which itself waits for the work that is queued on the device; with heap:async,
 * segments behind the work of their streams.
 * Does nothing while a stream of the device captures a graph.
 * Returns the bytes given back. Returns 0 on error. */
CACHALOT_API size_t cachalot_trim(size_t keep, int device);

/** Takes memory from `device` beforehand, until `size` bytes are cached that no stream has used.
 * They serve requests without a call of the driver: with heap:pages of all sizes and streams; with
 * the other heaps, of the stream that asks first. Memory that is cached already does not count.
 * cachalot_trim and cachalot_empty_cache give the memory back.
 * Fails with CACHALOT_E_OUT_OF_MEMORY if the device or a limit does not have the room. */
CACHALOT_API int cachalot_reserve(size_t size, int device);

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_C_LIMITS_H_ */
