/* What the simulated CUDA runtime has beyond CUDA: its clock in the program's hands. For tests, in C or by ctypes:

     import ctypes
     simulator = ctypes.CDLL(None)
     simulator.cachalot_sim_launch(ctypes.c_void_p(stream.cuda_stream), ctypes.c_int64(1_000_000))

   The functions are found in a process that has libcachalot_simulator.so preloaded. Those that return int return 0 or a
   cudaError_t. Thread-safe. */
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

/* Time passes on the host: events whose work ends by then are ready. */
CACHALOT_SIMULATOR_API int cachalot_sim_advance(int64_t nanoseconds);

/* Work of this length on a stream; on a capturing stream it becomes a kernel node. */
CACHALOT_SIMULATOR_API int cachalot_sim_launch(struct CUstream_st* stream, int64_t nanoseconds);

/* The host's time, from 0 at the first CUDA call; -1 when there is no device. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_clock_ns(void);

/* Physical memory in use on a device, now and at most so far, in units of 2 MiB; -1 when there is no such device. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_used_bytes(int device);
CACHALOT_SIMULATOR_API int64_t cachalot_sim_peak_used_bytes(int device);

/* How often a device was called so far. `call` as in CACHALOT_SIM_FAULTS: "malloc", "event_query", …
   -1 when there is no such device or call. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_calls(int device, const char* call);

/* Calls of a device that fail from now on, in CACHALOT_SIM_FAULTS' grammar, in place of those said before; "" for none.
   Nothing has changed when the text is refused. */
CACHALOT_SIMULATOR_API int cachalot_sim_set_faults(int device, const char* faults);

/* How many calls of a device were made to fail so far; -1 when there is no such device. */
CACHALOT_SIMULATOR_API int64_t cachalot_sim_faults_injected(int device);

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_SIMULATOR_H */
