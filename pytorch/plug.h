// The seam between libcachalot_torch.so, which holds the allocator and knows nothing of torch, and an adapter, which is
// compiled for one version of torch and knows nothing of how memory is managed.
//
// The library keeps the allocator to itself (hidden symbols, so that it never meets another copy of cachalot in the
// process) and exports one function, cachalot_plug, that returns this interface. Methods mean what CachingAllocator's
// methods of the same names mean; caching_allocator.h has their contracts. Errors are cachalot's own (errors.h): their
// types are in headers alone, so they cross from one library to the other.
// Thread safety: as CachingAllocator. The object lives until the process ends.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "cachalot/change.h"
#include "cachalot/history.h"
#include "cachalot/options.h"
#include "cachalot/out_of_memory.h"
#include "cachalot/pool_id.h"
#include "cachalot/private_pool.h"
#include "cachalot/shared_memory.h"
#include "cachalot/snapshot.h"
#include "cachalot/stats.h"

namespace cachalot {

// How a message crosses a C boundary, here and in an adapter: cut to `capacity` bytes, the closing zero included.
inline void copy_text(std::string_view text, char* out, std::size_t capacity) {
  if (out == nullptr || capacity == 0) return;
  out[text.copy(out, capacity - 1)] = '\0';
}

// Changes with this interface: an adapter refuses a library with another number.
inline constexpr int kPlugVersion = 6;

class Plug {
 public:
  // What torch's own configuration says. CACHALOT_CONF and cachalot_plug_configure are applied on top of it. Before the
  // first use of memory it is what the allocator starts with, later it takes effect at once.
  virtual void configure(const Options& torch_options) = 0;
  // Makes the allocator for the CUDA devices there are. Every other method does so, too, when it comes first, but for
  // has_virtual_memory.
  virtual void start() = 0;

  virtual void* allocate(std::size_t bytes, int device, Stream stream) = 0;
  virtual void deallocate(void* ptr) = 0;
  virtual void record_stream(void* ptr, Stream stream) = 0;
  // The same for a tensor that came from a pool, whose memory torch takes for somebody else's. Any other address is ignored.
  virtual void record_pooled(void* ptr, Stream stream) = 0;
  virtual void empty_cache(int device, PoolId pool) = 0;

  virtual std::size_t memory_allocated(int device) const = 0;
  virtual std::size_t memory_reserved(int device) const = 0;
  virtual DeviceStats memory_stats(int device) const = 0;
  virtual Snapshot snapshot(PoolId pool, bool include_traces) = 0;
  virtual void reset_peak_stats(int device) = 0;
  virtual void reset_accumulated_stats(int device) = 0;
  virtual std::size_t largest_available(int device, bool starting_from_free_memory) = 0;

  struct Allocation {
    void* segment = nullptr;          // where its segment starts
    std::size_t segment_bytes = 0;    // of the whole segment
    std::size_t allocated_bytes = 0;  // of its block
  };
  virtual Allocation allocation(void* ptr) const = 0;
  virtual int device_of(const void* ptr) const = 0;  // -1: not a live allocation of ours
  // Whether memory may be virtual memory, and not cudaMalloc's: the page heap's. Before the allocator is made, whether it
  // would be as things stand.
  virtual bool has_virtual_memory() const = 0;

  virtual SharedMemory share(const void* ptr) = 0;
  virtual void* open_shared(const SharedMemory& memory, int device) = 0;
  virtual void close_shared(void* base) = 0;
  virtual void enable_peer_access(int device, int peer) = 0;

  virtual void set_memory_fraction(double fraction, int device) = 0;
  virtual double memory_fraction(int device) const = 0;
  // Without effect where PYTORCH_NO_CUDA_MEMORY_CACHING keeps caching off.
  virtual void set_caching_enabled(bool enabled) = 0;
  virtual bool caching_enabled() const = 0;

  virtual void add_out_of_memory_observer(OutOfMemoryObserver observer) = 0;
  virtual void add_free_memory_callback(FreeMemoryCallback callback) = 0;
  virtual void add_change_tracker(ChangeTracker tracker) = 0;
  virtual void record_history(const HistoryOptions& history) = 0;
  virtual bool history_enabled() const = 0;

  virtual void create_or_retain_pool(int device, PoolId pool, std::shared_ptr<SegmentProvider> provider) = 0;
  virtual void begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason) = 0;
  virtual void end_allocate_to_pool(int device, PoolId pool) = 0;
  virtual void release_pool(int device, PoolId pool) = 0;
  virtual int pool_use_count(int device, PoolId pool) const = 0;
  virtual void set_use_on_oom(int device, PoolId pool, bool use_on_oom) = 0;
  virtual void set_no_split(int device, PoolId pool) = 0;
  virtual bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const = 0;
  virtual PoolCheckpoint checkpoint_pool(int device, PoolId pool) const = 0;
  virtual RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint) = 0;

  // Call stacks leave out what lies in the library around `code`: the adapter's.
  virtual void hide_code(const void* code) = 0;

  // How the function-pointer plug reports that memory ran out: must throw. Without, it throws a std::runtime_error.
  using Thrower = void (*)(const char* message);
  virtual void set_out_of_memory_thrower(Thrower thrower) = 0;

 protected:
  ~Plug() = default;
};

}  // namespace cachalot

extern "C" {
// Null when `version` is not the library's kPlugVersion.
[[gnu::visibility("default")]] cachalot::Plug* cachalot_plug(int version);
}
