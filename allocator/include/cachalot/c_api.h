/* The C interface of cachalot, a caching allocator of GPU memory: library libcachalot.so.
 *
 * One allocator serves the process; it comes to life at the first call that needs it and stays until the process ends.
 *
 *   void* p = cachalot_malloc(1 << 20, 0, stream);
 *   if (p == NULL) fputs(cachalot_last_error(), stderr);
 *   cachalot_free(p, 1 << 20, 0, stream);
 *
 * Options: the environment variable CACHALOT_CONF, in the grammar of PYTORCH_CUDA_ALLOC_CONF (keys and rules:
 * cachalot/options.h), and cachalot_configure. CACHALOT_DEBUG=1 is debug:True.
 *
 * Devices: the machine's GPUs, numbered as CUDA numbers them. Where there is none, simulated devices, whose memory must
 * not be touched: CACHALOT_SIM_MEMORY bytes each ("80GiB", the default, or "500MiB", "1073741824"; 2 MiB to 1 PiB) and
 * CACHALOT_SIM_DEVICES of them (default 1).
 * While one of these variables has a bad value, every call that needs the allocator fails with CACHALOT_E_ENVIRONMENT.
 *
 * Streams: memory is handed out for a stream and may be used by work queued there at once; it may be freed while such
 * work is still queued. Use on another stream must be announced with cachalot_record_stream before the free.
 *
 * Errors: functions of type int return CACHALOT_OK (0) or a CACHALOT_E_* code; those that return a pointer return NULL
 * and those that return a size 0. The message is cachalot_last_error(). A call that fails has changed nothing (when
 * memory is short, cached memory has by then been given back to the device), unless it says otherwise. Nothing is thrown,
 * nothing aborts.
 *
 * Thread safety: any function, from any thread, at any time; none from a signal handler. After a fork the child may use the
 * allocator only if the parent had not used it yet: else every call fails with CACHALOT_E_INVALID_ARGUMENT, but
 * cachalot_free, which does nothing. Once loaded the library stays, whatever dlclose is called for it.
 *
 * All sizes are in bytes. */
#ifndef CACHALOT_C_API_H_
#define CACHALOT_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "cachalot/version.h"

#if defined(__GNUC__)
#define CACHALOT_API __attribute__((visibility("default")))
#else
#define CACHALOT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* As in CUDA's headers, which may be included as well, in any order. NULL is the legacy default stream. */
typedef struct CUstream_st* cudaStream_t;

/* What went wrong. */
enum {
  CACHALOT_OK = 0,
  /* An argument breaks a rule; the message names the value and the rule. */
  CACHALOT_E_INVALID_ARGUMENT = 1,
  /* The device, or the limit set on it, has not enough memory, after all cached memory was given back. */
  CACHALOT_E_OUT_OF_MEMORY = 2,
  /* A CUDA call failed with something else than out of memory; the message names the call and CUDA's error. */
  CACHALOT_E_CUDA = 3,
  /* CACHALOT_CONF, CACHALOT_DEBUG, CACHALOT_SIM_MEMORY or CACHALOT_SIM_DEVICES is bad; the message names it, its value and
   * the rule. */
  CACHALOT_E_ENVIRONMENT = 4,
  /* Anything else: the host has no memory left, or a defect of cachalot. */
  CACHALOT_E_INTERNAL = 5
};

/* Returns the version of the library, "0.1.0"; CACHALOT_VERSION_STRING is the headers'. Never fails, needs no allocator. */
CACHALOT_API const char* cachalot_version(void);

/* Memory for work on `stream` of `device`: at least `size` bytes, aligned to 512.
 * Returns NULL for 0 bytes, without an error; NULL with an error when the device has not enough memory, when `size` is
 * 1 EiB or more (so is a negative number turned size_t) and when there is no such device. A call that succeeds, one for
 * 0 bytes included, empties cachalot_last_error(). */
CACHALOT_API void* cachalot_malloc(size_t size, int device, cudaStream_t stream);

/* How an allocation may be asked for. */
enum {
  /* In one physical handle, for whoever shares it (cachalot_share) or registers it with a network card. With heap:pages it
   * costs a new handle where none that is idle has the room; with heap:segments every allocation lies in one piece. */
  CACHALOT_CONTIGUOUS = 1
};

/* The same as cachalot_malloc, with flags of the enumeration above, or 0; an unknown flag is an error. */
CACHALOT_API void* cachalot_malloc_with_flags(size_t size, int device, cudaStream_t stream, unsigned int flags);

/* Frees what cachalot_malloc(size, device, …) or cachalot_malloc_with_flags returned. A `stream` other than the allocation's counts as a use there:
 * the memory is reused when the work queued on it so far is done. NULL does nothing.
 * A pointer that is not a live allocation's start, a second free, another `size` or another `device`: nothing is freed
 * and cachalot_last_error() says why. A call that succeeds empties cachalot_last_error(). */
CACHALOT_API void cachalot_free(void* ptr, size_t size, int device, cudaStream_t stream);

/* Gives cached memory without a live allocation back to the device (-1: all devices), after waiting for frees that wait
 * for other streams. Does nothing while a stream of the device captures a graph. */
CACHALOT_API int cachalot_empty_cache(int device);

/* Small blocks that threads keep for themselves (option thread_cache; -1: of all devices) go back to where all threads may
 * have them. cachalot_empty_cache does so, too, as does a request that would fail otherwise. */
CACHALOT_API int cachalot_drain_thread_caches(int device);

/* Now: bytes in allocated blocks (requests are rounded up), and bytes held from the device. 0 on error. */
CACHALOT_API size_t cachalot_memory_allocated(int device);
CACHALOT_API size_t cachalot_memory_reserved(int device);
/* The largest these were since the start or cachalot_reset_peak_memory_stats. 0 on error. */
CACHALOT_API size_t cachalot_max_memory_allocated(int device);
CACHALOT_API size_t cachalot_max_memory_reserved(int device);

/* Every peak starts again from the current value (-1: on all devices). */
CACHALOT_API int cachalot_reset_peak_memory_stats(int device);
/* Every sum ("allocated", "freed", "num_…") starts again from 0 (-1: on all devices). */
CACHALOT_API int cachalot_reset_accumulated_memory_stats(int device);

/* The live allocation at `ptr` is used by work queued on `stream`: after its free it is not reused before that work is
 * done. NULL does nothing. */
CACHALOT_API int cachalot_record_stream(void* ptr, cudaStream_t stream);

/* What a cachalot_shared_t holds. */
enum {
  CACHALOT_SHARED_SEGMENT = 0,    /* `bytes` is a cudaIpcMemHandle_t */
  CACHALOT_SHARED_DESCRIPTOR = 1, /* `descriptor` is a POSIX file */
  CACHALOT_SHARED_FABRIC = 2      /* `bytes` is a CUmemFabricHandle */
};

/* An allocation that lies in one piece, as another process may open it. */
typedef struct cachalot_shared_t {
  int kind;                /* CACHALOT_SHARED_* */
  int descriptor;          /* of this process: to be sent over a socket (SCM_RIGHTS) or taken by pidfd_getfd; else -1 */
  unsigned char bytes[64]; /* good in every process as they are; zeros for a descriptor */
  size_t handle_size;      /* of the whole handle; 0 for a segment */
  size_t offset;           /* of the allocation in the handle or segment */
  size_t size;             /* of the allocation */
} cachalot_shared_t;

/* Fills `*out` for the live allocation `ptr`; on error it is left as it was. With heap:pages an allocation may lie in
 * several handles; then the error says in how many: ask for it with CACHALOT_CONTIGUOUS. The descriptor stays the
 * allocator's and is open as long as `ptr` lives. All that lies in the same handle or segment can be reached through it. */
CACHALOT_API int cachalot_share(const void* ptr, cachalot_shared_t* out);

/* Opens what another process shared, on the device whose memory it is; `descriptor` must be one of this process, and stays
 * the caller's. Returns where the handle or segment begins here: the allocation is `offset` behind. NULL on error. */
CACHALOT_API void* cachalot_open_shared(const cachalot_shared_t* shared, int device);
/* Closes what cachalot_open_shared returned, as often as it was opened, after waiting for the device's work. During a
 * capture, and after CACHALOT_E_CUDA, it is put off until the next is closed. */
CACHALOT_API int cachalot_close_shared(void* base);

/* From now on work of `device` may use the memory of `peer`, old and new: cudaDeviceEnablePeerAccess, and for heap:pages
 * access to each mapping. A call that fails may have opened a part; it may be repeated. */
CACHALOT_API int cachalot_enable_peer_access(int device, int peer);

/* Limits the bytes held from `device` to floor(fraction x its total memory). `fraction` is in [0, 1]; 1 lifts the
 * limit. What is held already stays. */
CACHALOT_API int cachalot_set_memory_fraction(double fraction, int device);

/* Sleep: memory goes back to the device and comes again at the same addresses. Needs CACHALOT_CONF=heap:pages. `device` may
 * be -1: all devices. `tag` is a name, neither NULL nor empty.
 * From begin to end, the calling thread's allocations belong to the tag. Regions nest; each thread ends its own.
 * cachalot_release_physical waits for the device and gives the tag's memory back. Allocations stay live and may be freed,
 * but not used, and nothing is allocated from the tag, until cachalot_restore_physical. What they hold is lost, or, if
 * `save` is not 0, kept in pinned host memory and there again afterwards. Asking twice does nothing more.
 * Errors: CACHALOT_E_INVALID_ARGUMENT for a tag that was never begun, another heap, and during a graph's capture;
 * CACHALOT_E_OUT_OF_MEMORY when the host has too little to save to, or the device to wake: that device is as it was, those of
 * lower numbers are done. After CACHALOT_E_CUDA a part may be asleep; what was saved is kept, and calling again goes on. */
CACHALOT_API int cachalot_begin_tagged(const char* tag, int device);
CACHALOT_API int cachalot_end_tagged(const char* tag, int device);
CACHALOT_API int cachalot_release_physical(const char* tag, int save, int device);
CACHALOT_API int cachalot_restore_physical(const char* tag, int device);

/* Entries of cachalot_fragmentation_t's histogram. */
#define CACHALOT_HISTOGRAM_ENTRIES 32

/* How well the memory of one device is used, now. */
typedef struct cachalot_fragmentation_t {
  size_t requested_bytes;      /* asked for by live allocations, those waiting for other streams included */
  size_t allocated_bytes;      /* of the blocks that serve them */
  size_t reserved_bytes;       /* held from the device */
  size_t free_bytes;           /* cached: in free blocks */
  size_t largest_free_bytes;   /* of the largest free block */
  size_t free_blocks;          /* number of free blocks */
  size_t peak_requested_bytes; /* largest requested_bytes and reserved_bytes since the start … */
  size_t peak_reserved_bytes;  /* … or cachalot_reset_peak_memory_stats */
  double internal;             /* 1 - requested/allocated; 0 when nothing is allocated */
  double external;             /* 1 - largest_free/free; 0 when nothing is cached */
  double reserved_ratio;       /* reserved/allocated; 0 when nothing is allocated */
  double peak_ratio;           /* peak reserved/peak requested; 0 when nothing was requested */
  /* Free blocks by size: entry i counts blocks of [512 << i, 1024 << i) bytes; the last entry has no upper end. */
  uint64_t free_block_histogram[CACHALOT_HISTOGRAM_ENTRIES];
} cachalot_fragmentation_t;

/* Fills `*out`; on error it is left as it was. `out` must not be NULL. */
CACHALOT_API int cachalot_fragmentation(int device, cachalot_fragmentation_t* out);

/* JSON text, to be freed with cachalot_string_free; NULL on error.
 * Statistics: an object with the flat keys of torch.cuda.memory_stats ("allocated_bytes.all.current", …) and numbers.
 * Snapshot of all devices: an object with the keys of torch.cuda.memory._snapshot. */
CACHALOT_API char* cachalot_memory_stats_json(int device);
CACHALOT_API char* cachalot_snapshot_json(void);
/* The guard, with CACHALOT_CONF=guard:True: canaries around each allocation, poison in what was freed; with CACHALOT_DEBUG=1
 * also what callers do wrong, such as double frees, and stacks. Each report is on stderr as soon as it is found. This looks at all of it now, and returns every report since the last call (the newest
 * 1,000): an array of objects with the names of cachalot::GuardReport's members (cachalot/guard.h). NULL without a guard,
 * and while a graph is captured. */
CACHALOT_API char* cachalot_check_guard_json(void);
/* NULL does nothing. */
CACHALOT_API void cachalot_string_free(char* string);

/* The message of this thread's last call that failed; "" when none has, and after a cachalot_malloc or cachalot_free
 * that succeeded (their results alone do not tell). Other calls that succeed leave it. Never NULL; valid until
 * this thread's next call of cachalot. */
CACHALOT_API const char* cachalot_last_error(void);

/* Applies options, in CACHALOT_CONF's grammar: before the first use any of them, on top of CACHALOT_CONF; afterwards
 * those that PyTorch can change at run time, not `heap`, `backend`, `guard` nor `debug`. As in PyTorch, max_split_size_mb,
 * max_non_split_rounding_mb, roundup_power2_divisions and garbage_collection_threshold go back to their defaults when
 * `options` does not name them; the others stay. One mistake and nothing is applied. `options` must not be NULL. */
CACHALOT_API int cachalot_configure(const char* options);

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_C_API_H_ */
