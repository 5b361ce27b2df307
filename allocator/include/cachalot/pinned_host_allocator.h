// A caching allocator of pinned host memory: what asynchronous copies to and from a GPU need, without the cost of pinning
// (cudaHostAlloc takes hundreds of microseconds, and waits for the device when memory goes back) at each buffer.
//
//   cachalot::PinnedHostAllocator host(cachalot::cuda_devices().at(0));
//   void* buffer = host.allocate(1 << 20);
//   … write to buffer; cudaMemcpyAsync(to, buffer, 1 << 20, cudaMemcpyHostToDevice, stream);
//   host.record_stream(buffer, stream);
//   host.deallocate(buffer);                  // at once: it is not handed out again before the copy is done
//
// It is a CachingAllocator whose device is the host: the same sizes, segments, options and statistics. One thing differs: who
// gets a buffer may write to it at once, which no stream orders. So memory is handed out for no stream, and each stream that
// uses it is recorded; a buffer that is freed waits until the host can know that these are done. No call waits for the
// device, but those that ask the system for memory or give it back.
//
// Thread safety: every method may be called from any thread at any time.
// Errors: OutOfMemory, InvalidArgument and CudaError; after each, the state is as it was before the call.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>

#include "cachalot/caching_allocator.h"

namespace cachalot {

class PinnedHostAllocator {
 public:
  // `device` pins memory, for every device of the process, and makes the events. Options as for CachingAllocator; the page
  // heap is refused: it has no host memory.
  explicit PinnedHostAllocator(std::shared_ptr<Device> device, const Options& options = {});
  // Every buffer goes back to the system. Work that uses one must be done.
  ~PinnedHostAllocator();

  // At least `bytes` bytes, aligned to 512, which the host may use at once; nullptr for 0 bytes. Throws OutOfMemory.
  void* allocate(std::size_t bytes);
  // Work queued on `stream` uses the buffer; nullptr is the legacy default stream. Once is enough, before or after the work
  // is queued, but before deallocate. nullptr for a buffer is ignored;
  // InvalidArgument for any other that is not live.
  void record_stream(void* buffer, Stream stream);
  // The buffer is handed out again when the work is done that is queued by now on the streams recorded. nullptr is allowed.
  // InvalidArgument for any other pointer that is not a live buffer, and while a recorded stream captures: what a graph
  // uses must live as long as the graph.
  void deallocate(void* buffer);

  // Buffers that nobody has go back to the system; waits for those that streams still use.
  void empty_cache() { cache_->empty_cache(); }
  // Bytes. What waits for streams is active, not allocated.
  std::size_t memory_allocated() const { return cache_->memory_allocated(); }
  std::size_t memory_reserved() const { return cache_->memory_reserved(); }  // pinned
  DeviceStats memory_stats() const { return cache_->memory_stats(); }
  // For all that is not special about host memory: fractions (of the machine's memory), peaks, snapshots, history. Device 0.
  CachingAllocator& cache() { return *cache_; }

 private:
  std::unique_ptr<CachingAllocator> cache_;
};

}  // namespace cachalot
