/** @file
   Functions of the simulated CUDA runtime beyond CUDA: they control its clock, and put into its
   memory what kernels would compute. In C or by ctypes:

     import ctypes
     simulator = ctypes.CDLL(None)
     simulator.cachalot_sim_launch(ctypes.c_void_p(stream.cuda_stream), ctypes.c_int64(1_000_000))

   A process finds the functions if libcachalot_simulator.so is preloaded. Functions that return int
   return 0 or a cudaError_t. Thread-safe. */
#ifndef CACHALOT_SIMULATOR_H
#define CACHALOT_SIMULATOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CACHALOT_SIMULATOR_API __attribute__((visibility("default")))
#else
#define CACHALOT_SIMULATOR_API
#endif

struct CUstream_st;

/** Advances the host's clock. Events whose work ends by then are ready. */
CACHALOT_SIMULATOR_API int cachalot_sim_advance(int64_t nanoseconds);

/** Launches work of this length on a stream. On a capturing stream it becomes a kernel node. */
CACHALOT_SIMULATOR_API int cachalot_sim_launch(struct CUstream_st* stream, int64_t nanoseconds);

/** Returns the host's time, which is 0 at the first CUDA call; -1 if there is no device. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_clock_ns(void);

/** Returns the physical memory in use on a device, in units of 2 MiB; -1 if the device does not
   exist. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_used_bytes(int device);
/** Returns the peak of cachalot_sim_used_bytes so far; -1 if the device does not exist. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_peak_used_bytes(int device);

/** Returns the number of calls of a device so far. `call` is named as in `faults` of CACHALOT_SIM:
   "malloc", "event_query", ... Returns -1 if the device or the call does not exist. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_calls(int device, const char* call);

/** Returns how often the device's primary context was made: by cudaSetDevice, or by a call that
   needs it. Returns -1 if the device does not exist. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_contexts(int device);

/** Returns the number of calls so far that broke one of CUDA's rules, such as calls with a stream
   that was destroyed, and of uses of memory in no order, which strict:1 of CACHALOT_SIM looks for;
   -1 if there is no device. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_breaches(void);

/** Returns 1 once the process has called CUDA, and 0 before and in a child by fork of such a
    process. */
CACHALOT_SIMULATOR_API int cachalot_sim_is_used(void);

/** Returns the value of a key of the environment variable CACHALOT_SIM, as it is now. NULL: the key
    has no value, or the variable is bad. Valid until the thread calls this again. */
CACHALOT_SIMULATOR_API const char* cachalot_sim_setting(const char* key);

/** Writes the report (`report` of CACHALOT_SIM) now instead of when the process ends, for programs
    that end by _exit. Later calls of CUDA are not in it. */
CACHALOT_SIMULATOR_API void cachalot_sim_write_report(void);

/** From now on, calls `write`, in any thread, when the report is written because _exit, _Exit or a
    signal ends the process. It replaces the earlier one; nothing is called if it is NULL. */
CACHALOT_SIMULATOR_API void cachalot_sim_write_more(void (*write)(void));

/** Sets the calls of a device that fail from now on, in the grammar of `faults` of CACHALOT_SIM.
   They replace the earlier ones; "" for none. A text that is refused changes nothing. */
CACHALOT_SIMULATOR_API int cachalot_sim_set_faults(int device, const char* faults);

/** Returns the number of calls of a device that were made to fail so far; -1 if the device does not
   exist. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_faults_injected(int device);

/** A cachalot_sim_handles says what a device claims for the handles of cuMemCreate, and which calls
    then fail: with which CUresult, or 0 for none. */
typedef struct cachalot_sim_handles {
  int claims_fabric;       /**< attribute: handles can be shared by fabric */
  int claims_rdma;         /**< attribute: handles can be for GPUDirect RDMA */
  int granularity_error;   /**< of cuMemGetAllocationGranularity */
  int create_fabric_error; /**< of cuMemCreate, for handles to be shared by fabric */
  int create_file_error;   /**< of cuMemCreate, for handles to be shared by file descriptor */
  int create_rdma_error;   /**< of cuMemCreate, for GPUDirect RDMA */
  int access_rdma_error;   /**< of cuMemSetAccess, to memory for GPUDirect RDMA */
  int export_file_error;   /**< of cuMemExportToShareableHandle, by file descriptor */
} cachalot_sim_handles;

/** Sets the claims and failures of a device from now on. They replace the earlier ones; at first
    all are 0. */
CACHALOT_SIMULATOR_API int cachalot_sim_set_handles(int device, const cachalot_sim_handles* rules);

/** Writes to device memory what a kernel would have computed. It is not a call of CUDA's, and takes
    no time. `guess`: the values depend on unknown ones. Memory is unknown, and reads as zeros,
    until the program copies to it or fills it, or this function writes it.
    Returns cudaErrorInvalidValue if the range is not accessible device memory. */
CACHALOT_SIMULATOR_API int cachalot_sim_put(void* to, const void* from, uint64_t bytes, int guess);

/** Reads device memory. It is not a call of CUDA's, and takes no time. `to` may be NULL.
    Returns 1 if all of the memory is known, 0 if some is guessed or unknown, and -1 if the range is
    not accessible device memory. */
CACHALOT_SIMULATOR_API int cachalot_sim_get(void* to, const void* from, uint64_t bytes);

/** Returns 1 if all of the range is pinned or registered memory of the host, which kernels reach by
    its own address, and else 0. */
CACHALOT_SIMULATOR_API int cachalot_sim_is_pinned(const void* start, uint64_t bytes);

/** Writes to device memory bytes of several kinds: 0 unknown, 1 guessed, 2 known. Returns
    cudaErrorInvalidValue, and writes nothing, for another kind, and as cachalot_sim_put. */
CACHALOT_SIMULATOR_API int cachalot_sim_put_kinds(void* to, const void* from, uint64_t bytes,
                                                  const unsigned char* kinds);

/** Sets the kind of each byte of device memory. Returns as cachalot_sim_put. */
CACHALOT_SIMULATOR_API int cachalot_sim_get_kinds(unsigned char* kinds, const void* from,
                                                  uint64_t bytes);

/** Returns which kinds of bytes there are in device memory, as a sum: 1 unknown, 2 guessed,
    4 known. Returns -1 if the range is not accessible device memory. */
CACHALOT_SIMULATOR_API int cachalot_sim_kinds_in(const void* start, uint64_t bytes);

/** Sets each byte of device memory to a guess, in no time and without room for it. */
CACHALOT_SIMULATOR_API int cachalot_sim_guess(const void* start, uint64_t bytes, int byte);

/** Makes device memory unknown, as a kernel does that nothing computes. */
CACHALOT_SIMULATOR_API int cachalot_sim_make_unknown(const void* start, uint64_t bytes);

/** Makes `count` ranges of device memory unknown: `ranges` has all their addresses, and then their
    sizes. It ends at the first that is not accessible device memory, and returns
    cudaErrorInvalidValue; those before it are unknown. */
CACHALOT_SIMULATOR_API int cachalot_sim_make_all_unknown(const uint64_t* ranges, uint64_t count);

/** Sets the number that copies of 4 or 8 bytes from device to host return in this thread: the count
    of what a kernel would have selected. A negative count takes it back. */
CACHALOT_SIMULATOR_API void cachalot_sim_answer(int64_t count);

/** A cachalot_sim_race is memory of an allocator's block that work used which does not come before
    the first use of that memory by its next block. Places are numbers that the caller has given. */
typedef struct cachalot_sim_race {
  uint64_t bytes;                /**< that the earlier work used */
  uint64_t allocation;           /**< of the earlier block, counted on its device from 0 on */
  uint64_t reallocation;         /**< of the next block, likewise */
  const char* freed_at;          /**< the line of Python that freed the earlier block, or "" */
  const char* used_line;         /**< instead of used_at, if it is not empty: a line of Python that
                                      called NCCL or copied, or the name of the call */
  const char* reused_line;       /**< likewise, instead of reused_at */
  struct CUstream_st* used_on;   /**< the stream of the earlier work */
  struct CUstream_st* reused_on; /**< the stream of the later use */
  uint32_t used_at;              /**< the place of the earlier work */
  uint32_t reused_at;            /**< the place of the later use */
  int32_t device;                /**< that has the memory */
} cachalot_sim_race;

/** Notes that an allocator has given an owner a block of a device's memory. With races:1 of
    CACHALOT_SIM; otherwise nothing happens. The simulator itself notes PyTorch's blocks. */
CACHALOT_SIMULATOR_API int cachalot_sim_block_allocated(int device, uint64_t start, uint64_t bytes);

/** Notes that the block's owner has freed it, whenever its memory can be used again. */
CACHALOT_SIMULATOR_API int cachalot_sim_block_freed(uint64_t start);

/** Notes that the work which a stream got last uses `count` ranges of blocks: `ranges` has all
    their addresses, and then their sizes. Ranges in no block are left out, and so is work that is
    captured into a graph.
    Returns the number of races found and not yet taken, or -1 if there is no such stream. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_blocks_used(const uint64_t* ranges, uint64_t count,
                                                        struct CUstream_st* stream, uint32_t place);

/** Returns the number of blocks that were noted so far, or -1 if there is no device. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_blocks_noted(void);

/** Takes the earliest race that is not taken yet. Returns 1, or 0 if there is no such race. */
CACHALOT_SIMULATOR_API int cachalot_sim_take_race(cachalot_sim_race* race);

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_SIMULATOR_H */
