/** @file
 * The C interface of cachalot, a caching allocator of GPU memory: library libcachalot.so, and
 * libcachalot_torch.so in a process of PyTorch. Includes cachalot/c_processes.h and c_tags.h.
 *
 *     void* p = cachalot_malloc(1 << 20, 0, stream);
 *     if (p == NULL) fputs(cachalot_last_error(), stderr);
 *     cachalot_free(p, 1 << 20, 0, stream);
 *
 * The allocator: one allocator serves the process. It is made by the first call that needs it
 * and stays until the process ends. The library stays loaded even if dlclose is called for it.
 *
 * Options: the environment variable CACHALOT_CONF and cachalot_configure. Their grammar is that
 * of PYTORCH_CUDA_ALLOC_CONF; cachalot/options.h lists keys and rules. CACHALOT_DEBUG=1 is
 * debug:True.
 *
 * Devices: the machine's GPUs, numbered as CUDA numbers them. With CACHALOT_SIMULATE=1 the library
 * drives simulated devices instead, whose memory must not be touched; so it does, with a message on
 * stderr, on a machine without a CUDA driver and in a build without CUDA. A driver that is too old,
 * fails or shows no GPU makes every call that needs the allocator fail with CACHALOT_E_CUDA.
 * CACHALOT_SIM="devices:2,memory:24GiB" sets how many there are, 1 to 64 (default 1), and the
 * memory of each ("80GiB", the default, "500MiB", "1073741824"; from 2 MiB to 1 PiB).
 *
 * Environment: while one of these variables has a bad value, every call that needs the
 * allocator fails with CACHALOT_E_ENVIRONMENT.
 *
 * Streams: memory is allocated for a stream. Work queued on that stream may use it at once. It
 * may be freed while such work is still queued. Use on another stream must be declared with
 * cachalot_record_stream before the free.
 *
 * Errors: functions of type int return CACHALOT_OK (0) or a CACHALOT_E_* code. Functions that
 * return a pointer return NULL, and functions that return a size return 0.
 * cachalot_last_error() is the message. A call that fails has changed nothing, unless its
 * description says otherwise; a request that ran out of memory has given cached memory back to
 * the device. No function throws or aborts.
 *
 * Thread safety: every function may be called from any thread at any time, but not from a
 * signal handler.
 *
 * Processes: a forked child may use the allocator only if the parent had not used it. Otherwise
 * every call in the child fails with CACHALOT_E_INVALID_ARGUMENT, except that cachalot_free
 * does nothing.
 *
 * Units: all sizes are in bytes.
 *
 * libcachalot_torch.so, the plug-in for PyTorch, exports the same functions over the allocator that
 * serves PyTorch. They differ from the above in this:
 * - cachalot_malloc and cachalot_free keep PyTorch's contract, which their descriptions give. C
 *   programs call cachalot_malloc_with_flags(size, device, stream, 0) instead of the former.
 * - The options are PyTorch's (PYTORCH_CUDA_ALLOC_CONF), then CACHALOT_CONF, those of
 *   cachalot.enable() and of cachalot_configure. PyTorch's imply immortal_streams:True: set False
 *   before the first use if streams end, or cachalot_stream_ends has no effect.
 * - The devices are GPUs; CACHALOT_SIMULATE and CACHALOT_SIM have no effect. */
#ifndef CACHALOT_C_API_H_
#define CACHALOT_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "cachalot/version.h"

/** Marks the functions that the libraries export. */
#if defined(__GNUC__)
#define CACHALOT_API __attribute__((visibility("default")))
#else
#define CACHALOT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** CUDA's type of a stream. CUDA's headers may be included as well, in any order. NULL is the
 * legacy default stream. */
typedef struct CUstream_st* cudaStream_t;

/** The results of functions of type int. */
enum {
  /** Success. */
  CACHALOT_OK = 0,
  /** An argument breaks a rule. The message names the value and the rule. */
  CACHALOT_E_INVALID_ARGUMENT = 1,
  /** The device, or the limit set on it, does not have enough memory after all cached memory was
   * given back. */
  CACHALOT_E_OUT_OF_MEMORY = 2,
  /** A CUDA call failed for another reason than a lack of memory. The message names the call and
   * CUDA's error. */
  CACHALOT_E_CUDA = 3,
  /** CACHALOT_CONF, CACHALOT_DEBUG, CACHALOT_PUBLISH, CACHALOT_SIMULATE or CACHALOT_SIM has
   * a bad value. The message names the variable, its value and the rule. */
  CACHALOT_E_ENVIRONMENT = 4,
  /** Any other failure: the host has no memory left, or cachalot has a defect. */
  CACHALOT_E_INTERNAL = 5
};

/** Returns the version of the library, "0.1.0". CACHALOT_VERSION_STRING is the version of the
 * headers.
 * Never fails, and does not make the allocator. */
CACHALOT_API const char* cachalot_version(void);

/** Returns at least `size` bytes, aligned to 512, for work on `stream` of `device`.
 * Returns NULL without an error for 0 bytes.
 * Returns NULL with an error if the device does not have enough memory.
 * Returns NULL with an error if `size` is 1 EiB or more, as a negative number turned size_t is.
 * Returns NULL with an error if there is no such device.
 * A call that succeeds, for 0 bytes included, empties cachalot_last_error().
 * In libcachalot_torch.so it throws a C++ exception instead of an error, since PyTorch would take
 * NULL for a tensor's address, and leaves cachalot_last_error() as it is. */
CACHALOT_API void* cachalot_malloc(size_t size, int device, cudaStream_t stream);

/** Flags of cachalot_malloc_with_flags. */
enum {
  /** The allocation lies in one physical handle, to be shared (cachalot_share). With heap:pages
   * this costs a new handle if no idle handle has the room. Segments are in one piece. */
  CACHALOT_CONTIGUOUS = 1,
  /** The allocation lies in a segment of cudaMalloc, whatever the heap: cudaIpcGetMemHandle
   * accepts it, its physical pages never change, and it cannot sleep. */
  CACHALOT_PLAIN = 2
};

/** Returns memory as cachalot_malloc does, with flags of the enumeration above, or 0.
 * An unknown flag is an error. */
CACHALOT_API void* cachalot_malloc_with_flags(size_t size, int device, cudaStream_t stream,
                                              unsigned int flags);

/** Returns memory as cachalot_malloc does, at an address that is a multiple of `alignment`.
 * `alignment` is a power of two up to 2 MiB; another number is an error. */
CACHALOT_API void* cachalot_malloc_aligned(size_t size, size_t alignment, int device,
                                           cudaStream_t stream);

/** Frees what a cachalot_malloc function returned for this `size` and `device`.
 * A `stream` other than the allocation's counts as a use there: the memory is reused when the work
 * queued on it so far is done.
 * NULL is ignored.
 * It is an error if `ptr` is not the start of a live allocation, as after a first free.
 * It is an error if `size` or `device` is not the allocation's.
 * On error nothing is freed, and cachalot_last_error() is the message.
 * A call that succeeds empties cachalot_last_error().
 * In libcachalot_torch.so it takes the same values and refuses the same calls, nothing is freed
 * either, but it throws a C++ exception, which ends a program in C with its message on stderr, and
 * leaves cachalot_last_error() as it is. */
CACHALOT_API void cachalot_free(void* ptr, size_t size, int device, cudaStream_t stream);

/** Gives cached memory without a live allocation back to the device (-1: all devices).
 * Waits for other streams that still use freed memory.
 * Does nothing while a stream of the device captures a graph. */
CACHALOT_API int cachalot_empty_cache(int device);

/** Returns every thread's cached blocks (option thread_cache) to the shared heap of the device
 * (-1: all devices).
 * cachalot_empty_cache and a request that would fail otherwise do so, too. */
CACHALOT_API int cachalot_drain_thread_caches(int device);

/** Returns the bytes of allocated blocks now; requests are rounded up to blocks. Returns 0 on
 * error. */
CACHALOT_API size_t cachalot_memory_allocated(int device);
/** Returns the bytes held from the device now. Returns 0 on error. */
CACHALOT_API size_t cachalot_memory_reserved(int device);
/** Returns the largest cachalot_memory_allocated since the start or
 * cachalot_reset_peak_memory_stats.
 * Returns 0 on error. */
CACHALOT_API size_t cachalot_max_memory_allocated(int device);
/** Returns the largest cachalot_memory_reserved since the start or
 * cachalot_reset_peak_memory_stats.
 * Returns 0 on error. */
CACHALOT_API size_t cachalot_max_memory_reserved(int device);

/** Starts every peak of the device (-1: all devices) again from the current value. */
CACHALOT_API int cachalot_reset_peak_memory_stats(int device);
/** Starts every sum ("allocated", "freed", "num_...") of the device (-1: all devices) again from
 * 0. */
CACHALOT_API int cachalot_reset_accumulated_memory_stats(int device);

/** Declares that work queued on `stream` uses the live allocation `ptr`.
 * After its free the memory is not reused before that work is done.
 * NULL is ignored. */
CACHALOT_API int cachalot_record_stream(void* ptr, cudaStream_t stream);

/** Declares that no more work will be queued on `stream`, which is about to be destroyed: call it
 * before cudaStreamDestroy. The memory of the stream then serves other streams as soon as the work
 * queued so far is done. Live allocations stay valid and may be freed later. Without the call,
 * other streams reuse the memory after the next wait for the device.
 * A stream that the allocator does not know, and the legacy default stream, are ignored.
 * It is an error if the stream was destroyed already, or if it captures a graph. */
CACHALOT_API int cachalot_stream_ends(cudaStream_t stream);

/** The kinds of a cachalot_shared_t. */
enum {
  CACHALOT_SHARED_SEGMENT = 0,    /**< `bytes` is a cudaIpcMemHandle_t */
  CACHALOT_SHARED_DESCRIPTOR = 1, /**< `descriptor` is a POSIX file descriptor */
  CACHALOT_SHARED_FABRIC = 2      /**< `bytes` is a CUmemFabricHandle */
};

/** Describes an allocation that lies in one piece, for another process to open. */
typedef struct cachalot_shared_t {
  int kind; /**< CACHALOT_SHARED_* */
  /** A file descriptor of this process, or -1. Send it over a socket (SCM_RIGHTS), or let the other
   * process take it by pidfd_getfd. */
  int descriptor;
  unsigned char bytes[64]; /**< valid in every process as they are; zeros for a descriptor */
  size_t handle_size;      /**< bytes of the whole handle; 0 for a segment */
  size_t offset;           /**< bytes from the start of the handle or segment to the allocation */
  size_t size;             /**< bytes of the allocation */
} cachalot_shared_t;

/** Fills `*out` for the live allocation `ptr`. On error `*out` stays as it was.
 * With heap:pages an allocation may lie in several handles. That is an error, which says in how
 * many; ask for such an allocation with CACHALOT_CONTIGUOUS.
 * The descriptor stays the allocator's and is open as long as `ptr` lives.
 * All memory in the same handle or segment can be reached through it. */
CACHALOT_API int cachalot_share(const void* ptr, cachalot_shared_t* out);

/** Opens memory that another process shared, on the device whose memory it is.
 * Returns the address in this process where the handle or segment begins; the allocation is
 * `offset` bytes behind. Returns NULL on error.
 * `descriptor` must be a descriptor of this process. It stays the caller's. */
CACHALOT_API void* cachalot_open_shared(const cachalot_shared_t* shared, int device);
/** Closes what cachalot_open_shared returned. Each cachalot_open_shared needs one
 * cachalot_close_shared.
 * Waits for the device's work.
 * While a graph is captured, and after CACHALOT_E_CUDA, the memory stays mapped until the next
 * cachalot_close_shared. */
CACHALOT_API int cachalot_close_shared(void* base);

/** Allows work of `device` to use memory of `peer`, allocated before or later:
 * cudaDeviceEnablePeerAccess, with heap:pages access to each mapping, and access to CUDA's pool.
 * A call that fails may have opened a part. It may be repeated. */
CACHALOT_API int cachalot_enable_peer_access(int device, int peer);

/** Describes a part of the memory held from a device, which begins or ends. */
typedef struct cachalot_segment_t {
  int device; /**< index of the device */
  int begins; /**< 1: the memory is there from now on; 0: it has ended */
  /** 1: a segment, which ends whole: memory of cudaMalloc, whose physical memory stays until then,
   * or what heap:async, heap:managed or a MemPool's allocator has instead. 0: pages behind cuMemMap
   * (heap:pages): a part that ends may be a piece of one that began, or span several. */
  int is_plain;
  void* address; /**< where the part begins */
  size_t size;   /**< bytes of the part */
} cachalot_segment_t;

/** Called when memory begins or ends, on the thread whose call of cachalot made it so, with the
 * allocator's lock held: it must not call cachalot, nor take a lock that a thread may hold while it
 * calls cachalot, such as Python's GIL. Calls for different devices may run concurrently.
 * `segment` is valid during the call. */
typedef void (*cachalot_segment_callback)(const cachalot_segment_t* segment, void* context);

/** Adds a callback for programs that register memory with NCCL or a network card. It is called with
 * `context`: before this returns, for all memory that is held from any device, then for each part
 * after it came from the device, and for each part when it goes (a segment before the device gets
 * it back). It misses none, and receives none twice.
 * Memory ends when it falls asleep, and begins when it wakes. Pages that move end at one address
 * and begin at another. Memory of cachalot_open_shared is not reported.
 * Waits while another thread gets memory from a device or gives it back.
 * Fails with CACHALOT_E_INVALID_ARGUMENT for a callback that is NULL, and for one that was added
 * with this `context` before. */
CACHALOT_API int cachalot_add_segment_callback(cachalot_segment_callback callback, void* context);
/** Removes a callback: after this returns, it does not run with `context` on any thread. It is not
 * called for the memory that is held then.
 * Fails with CACHALOT_E_INVALID_ARGUMENT for a callback that was not added with this `context`. */
CACHALOT_API int cachalot_remove_segment_callback(cachalot_segment_callback callback,
                                                  void* context);

/** Limits the bytes held from `device` to floor(fraction x its total memory).
 * `fraction` is in [0, 1]; 1 lifts the limit.
 * Memory that is held already stays. */
CACHALOT_API int cachalot_set_memory_fraction(double fraction, int device);

/** Entries of cachalot_fragmentation_t's histogram. */
#define CACHALOT_HISTOGRAM_ENTRIES 32

/** Says how well the memory of one device is used at one moment. */
typedef struct cachalot_fragmentation_t {
  size_t requested_bytes;    /**< asked for by blocks that are live or wait for other streams */
  size_t allocated_bytes;    /**< of those blocks */
  size_t reserved_bytes;     /**< held from the device */
  size_t free_bytes;         /**< cached, in free blocks */
  size_t largest_free_bytes; /**< of the largest free block */
  size_t free_blocks;        /**< number of free blocks */
  /** Largest requested_bytes since the start or cachalot_reset_peak_memory_stats. */
  size_t peak_requested_bytes;
  /** Largest reserved_bytes since the start or cachalot_reset_peak_memory_stats. */
  size_t peak_reserved_bytes;
  double internal;       /**< 1 - requested/allocated; 0 if nothing is allocated */
  double external;       /**< 1 - largest_free/free; 0 if nothing is free */
  double reserved_ratio; /**< reserved/allocated; 0 if nothing is allocated */
  double peak_ratio;     /**< peak reserved/peak requested; 0 if nothing was requested */
  /** Counts free blocks by size: entry i counts blocks of [512 << i, 1024 << i) bytes; the last
   * entry has no upper end. */
  uint64_t free_block_histogram[CACHALOT_HISTOGRAM_ENTRIES];
} cachalot_fragmentation_t;

/** Fills `*out`. On error `*out` stays as it was. `out` must not be NULL. */
CACHALOT_API int cachalot_fragmentation(int device, cachalot_fragmentation_t* out);

/** Returns the statistics as JSON: an object with the flat keys of torch.cuda.memory_stats
 * ("allocated_bytes.all.current", ...) and numbers.
 * Free the text with cachalot_string_free. Returns NULL on error. */
CACHALOT_API char* cachalot_memory_stats_json(int device);
/** Returns a snapshot of all devices as JSON: an object with the keys of
 * torch.cuda.memory._snapshot.
 * Free the text with cachalot_string_free. Returns NULL on error. */
CACHALOT_API char* cachalot_snapshot_json(void);
/** Verifies all memory under the guard now and returns every report since the last call, at most
 * the newest 1,000, as JSON: an array of objects with the names of cachalot::GuardReport's
 * members (cachalot/guard.h).
 * CACHALOT_CONF=guard:True puts canaries around each allocation and poison into freed memory.
 * CACHALOT_DEBUG=1 also reports mistakes of callers, such as double frees, and adds call stacks.
 * Each report is printed on stderr as soon as it is found.
 * Free the text with cachalot_string_free. Returns NULL on error, as without a guard and while a
 * graph is captured. */
CACHALOT_API char* cachalot_check_guard_json(void);
/** Frees a text that a function above returned. NULL is ignored. */
CACHALOT_API void cachalot_string_free(char* string);

/** Returns the message of the calling thread's last call that failed, or "".
 * A cachalot_malloc, cachalot_free, cachalot_trim or cachalot_give_way that succeeds empties it,
 * since their results alone do not tell.
 * Other calls that succeed leave it.
 * Never returns NULL. The text is valid until the thread's next call of cachalot. */
CACHALOT_API const char* cachalot_last_error(void);
/** Returns the code of the calling thread's last call that failed, one of CACHALOT_E_*; CACHALOT_OK
 * while cachalot_last_error() is "". Functions that do not return a code need it. */
CACHALOT_API int cachalot_last_error_code(void);

/** @name ONNX Runtime
 * The three functions below are what its CUDA execution provider takes as the options
 * gpu_external_alloc, gpu_external_free and gpu_external_empty_cache: their addresses as decimal
 * numbers, all three together. They have no stream and no device, which
 * cachalot_onnxruntime_bind sets for the process.
 * @{ */

/** Binds the functions below to the execution provider's device_id and stream; before, they serve
 * device 0 and the legacy default stream, which is the one that ONNX Runtime works on with such
 * functions: it refuses user_compute_stream beside them. Memory allocated before stays as it is.
 * Requires: no call of the functions below is in progress: call it before the session is made.
 * Fails with CACHALOT_E_INVALID_ARGUMENT for a device that does not exist and for a stream of
 * another device. The old binding then stays. */
CACHALOT_API int cachalot_onnxruntime_bind(int device, cudaStream_t stream);
/** Returns `size` bytes; NULL for 0 bytes and, with an error, without enough memory. */
CACHALOT_API void* cachalot_onnxruntime_alloc(size_t size);
/** Frees what cachalot_onnxruntime_alloc returned. NULL is ignored. Other pointers are an error. */
CACHALOT_API void cachalot_onnxruntime_free(void* ptr);
/** Gives cached memory of the bound device back to it. */
CACHALOT_API void cachalot_onnxruntime_empty_cache(void);
/** @} */

/** Applies options, in CACHALOT_CONF's grammar.
 * Before the first use any option may be set, on top of CACHALOT_CONF.
 * Later the options may be set that PyTorch can change at run time: not `heap`,
 * `guard` nor `debug`.
 * As in PyTorch, max_split_size_mb, max_non_split_rounding_mb, roundup_power2_divisions and
 * garbage_collection_threshold go back to their defaults if `options` does not name them; in
 * libcachalot_torch.so they stay, since PyTorch sets them. The other options stay.
 * A mistake in `options` is an error, and then no option is applied.
 * `options` must not be NULL. */
CACHALOT_API int cachalot_configure(const char* options);

/** @name Limits at run time
 * Held memory is allocated and cached memory: cachalot_memory_reserved.
 * @{ */

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
 * for the device's work: with heap:pages, memory whose work is done; with heap:segments and
 * heap:managed, segments by cudaFree, which itself waits for the work that is queued on the device;
 * with heap:async, segments behind the work of their streams.
 * Does nothing while a stream of the device captures a graph.
 * Returns the bytes given back. Returns 0 on error.
 * A call that succeeds empties cachalot_last_error(). */
CACHALOT_API size_t cachalot_trim(size_t keep, int device);

/** Takes memory from `device` beforehand, until `size` bytes are cached that no stream has used.
 * They serve requests without a call of the driver: with heap:pages of all sizes and streams; with
 * the other heaps, of the stream that asks first. Memory that is cached already does not count.
 * cachalot_trim gives the memory back, cachalot_empty_cache does not.
 * Fails with CACHALOT_E_OUT_OF_MEMORY if the device or a limit does not have the room. */
CACHALOT_API int cachalot_reserve(size_t size, int device);

/** @} */

#ifdef __cplusplus
}
#endif

#include "cachalot/c_processes.h"
#include "cachalot/c_tags.h"

#endif /* CACHALOT_C_API_H_ */
