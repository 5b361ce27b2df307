// The seam between libcachalot_torch.so and an adapter for pinned host memory; plug.h is the one for GPU memory, and its
// rules hold here: errors are cachalot's own, and the object lives until the process ends.
#pragma once

#include <cstddef>

// An adapter is compiled with these headers, and linked with nothing of the library's.
#define CACHALOT_WITHOUT_LIBRARY
#include "cachalot/device.h"
#include "cachalot/events.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/stats.h"

namespace cachalot {

// Changes with this interface: an adapter refuses a library with another number.
inline constexpr int kHostPlugVersion = 1;

// PinnedStats are the statistics of the process's pinned memory; all 0 before its first use.
struct PinnedStats {
  DeviceStats memory;  // of the heap, whose device is the host
  PinTimes times;
};

// A HostPlug is the pinned host memory of the process, one PinnedHostAllocator that is made at first use.
// Thread safety: every function may be called from any thread. None holds a lock while it calls what it was given, and none
// needs the GIL.
class HostPlug {
 public:
  // Returns at least `bytes` > 0 bytes of the private pool, or of the default one. The first call of the process makes the
  // heap, which pins through GPU `through`, whose context CUDA makes if it is not there.
  // Throws OutOfMemory if the system or the limit has no more, and InvalidArgument in a forked child of a process that has
  // pinned memory.
  virtual void* allocate(std::size_t bytes, PoolId pool, int through) = 0;
  // Frees a buffer. It is handed out again once all work is done that is queued by now on its recorded streams. A buffer of
  // a private pool that a stream has used stays as it is until the pool has no users: a graph may use it. A buffer that CUDA
  // does not release now, because a stream that uses it captures, is freed later. Does nothing in a forked child.
  virtual void deallocate(void* buffer) noexcept = 0;
  // Declares that work on `stream` uses the buffer. Returns false, and does nothing, for anything but a live buffer.
  virtual bool record_stream(void* buffer, Stream stream) = 0;

  // Opens the private pool for `allocate` and adds a user; while pools are open the heap asks no events, as CUDA forbids it
  // while a stream captures. Throws InvalidArgument if the pool is open.
  virtual void begin_allocate_to_pool(PoolId pool, int through) = 0;
  // Closes the pool; its user stays. Throws InvalidArgument if it is not open.
  virtual void end_allocate_to_pool(PoolId pool) = 0;
  // Removes a user. Throws InvalidArgument if there is none.
  virtual void release_pool(PoolId pool) = 0;
  // Returns the number of users; 0 for an unknown pool and in a forked child.
  virtual int pool_use_count(PoolId pool) const = 0;

  // Gives buffers that are not in use back to the system. Blocks: until streams are done with freed buffers.
  virtual void empty_cache() = 0;
  virtual PinnedStats stats() const = 0;
  virtual void reset_accumulated_stats() = 0;
  virtual void reset_peak_stats() = 0;

  // Records history as CachingAllocator::record_history. The recorder of contexts runs under no lock, and with the GIL if the
  // thread ever ran Python code.
  virtual void record_history(HistoryOptions history, int through) = 0;
  virtual bool history_enabled() const = 0;
  // Returns the segments and the trace of the heap, both empty before its first use.
  virtual Snapshot snapshot() const = 0;

 protected:
  HostPlug() = default;
  ~HostPlug() = default;
};

}  // namespace cachalot

extern "C" {
// Null when `version` is not the library's kHostPlugVersion.
[[gnu::visibility("default")]] cachalot::HostPlug* cachalot_host_plug(int version);
}
