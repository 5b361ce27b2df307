/// @file
/// Pinned host memory: its allocator, the times of pinning, and a std::pmr memory resource.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// CallTimes say how often a call was made and how long it took, in microseconds.
struct CallTimes {
  std::int64_t count = 0;     ///< calls since the start or reset_accumulated_stats
  std::int64_t total_us = 0;  ///< their sum since the start or reset_accumulated_stats
  std::int64_t min_us = 0;    ///< the shortest since the start or reset_peak_stats; 0: none yet
  std::int64_t max_us = 0;    ///< the longest since the start or reset_peak_stats
};

/// PinTimes are the times of a PinnedHostAllocator's calls to the system.
struct PinTimes {
  CallTimes pin;    ///< calls that got pinned memory (cuMemHostAlloc)
  CallTimes unpin;  ///< calls that gave it back (cuMemFreeHost)

  static constexpr std::size_t kSizes = 64;  ///< entries of pins_by_size
  /// Counts calls that got pinned memory, by size: entry i counts those of more than 2^(i-1) and at
  /// most 2^i bytes, since the start or reset_accumulated_stats.
  std::array<std::int64_t, kSizes> pins_by_size{};
};

class PinTimer;

/// A PinnedHostAllocator hands out pinned host memory, which asynchronous copies to and from a GPU
/// need, and caches it: cudaHostAlloc takes hundreds of microseconds, and giving memory back waits
/// for the device.
///
///     cachalot::PinnedHostAllocator host(cachalot::cuda_devices().at(0));
///     void* buffer = host.allocate(1 << 20);
///     ...  // write to the buffer
///     cudaMemcpyAsync(to, buffer, 1 << 20, cudaMemcpyHostToDevice, stream);
///     host.record_stream(buffer, stream);
///     host.deallocate(buffer);  // at once: it is not handed out again before the copy is done
///
/// It is a CachingAllocator whose device is the host, with the same sizes, segments, options and
/// statistics. One thing differs: the host may write to a new buffer at once, which no stream
/// orders. So memory is handed out for no stream, and every stream that uses a buffer must be
/// recorded. A freed buffer waits until the host knows that the recorded work is done.
///
/// Blocks: only calls that pin new memory or give memory back to the system wait for the device.
/// Thread safety: every method may be called from any thread at any time.
/// Errors: OutOfMemory, InvalidArgument and CudaError; after each, the state is as before the call.
class PinnedHostAllocator {
 public:
  /// Pins memory through `device`, for every device of the process. Options are those of
  /// CachingAllocator, and pinned_limit.
  /// Throws InvalidArgument if `device` is null, and for heap:pages, guard:True and debug:True.
  explicit PinnedHostAllocator(std::shared_ptr<Device> device, const Options& options = {});
  /// Gives every buffer back to the system. Requires: work that uses a buffer is done.
  ~PinnedHostAllocator();

  /// Returns at least `bytes` bytes, aligned to 512, which the host may use at once; nullptr for 0
  /// bytes.
  /// Throws OutOfMemory if the system or the limit has no more, after the cache was given back.
  void* allocate(std::size_t bytes);
  /// Declares that work queued on `stream` uses the buffer; nullptr is the legacy default stream.
  /// One call for each stream is enough, before or after the work is queued, but before deallocate.
  /// A null buffer is ignored. Throws InvalidArgument for a buffer that is not live.
  void record_stream(void* buffer, Stream stream);
  /// Declares the end of a stream that buffers are recorded on, as CachingAllocator::stream_ends.
  void stream_ends(Stream stream) { cache_->stream_ends(stream); }
  /// Frees the buffer. It is handed out again once all work is done that is queued by now on the
  /// recorded streams. nullptr is ignored.
  /// Throws InvalidArgument for a buffer that is not live, and while a recorded stream captures:
  /// what a graph uses must live as long as the graph.
  void deallocate(void* buffer);

  /// The smallest limit: 2 MiB, the segment that small requests are served from.
  static constexpr std::size_t kMinLimit = std::size_t{2} << 20;
  /// Limits the bytes that are pinned to `bytes`; Options::kUnlimited lifts the limit. Memory that
  /// is pinned already stays.
  /// Throws InvalidArgument below kMinLimit.
  void set_limit(std::size_t bytes);
  /// Returns the limit in bytes; Options::kUnlimited without one.
  std::size_t limit() const { return limit_.load(); }

  /// Gives buffers that are not in use back to the system. Blocks: waits for the streams that still
  /// use freed buffers.
  void empty_cache() { cache_->empty_cache(); }
  /// Returns the bytes of live buffers. Freed buffers that wait for streams are not in it.
  std::size_t memory_allocated() const { return cache_->memory_allocated(); }
  /// Returns the bytes that are pinned.
  std::size_t memory_reserved() const { return cache_->memory_reserved(); }
  /// Returns the statistics. Freed buffers that wait for streams are active, not allocated.
  DeviceStats memory_stats() const { return cache_->memory_stats(); }
  /// Returns how long the calls took that pinned memory and gave it back.
  PinTimes pin_times() const;
  /// Starts the peaks of memory_stats again from the current values, and the minima and maxima of
  /// pin_times.
  void reset_peak_stats();
  /// Starts the sums and counts of memory_stats and pin_times again from 0.
  void reset_accumulated_stats();
  /// Returns the allocator behind, for fractions (of the machine's memory), peaks, snapshots and
  /// history. The host is its device 0.
  CachingAllocator& cache() { return *cache_; }

 private:
  const std::shared_ptr<PinTimer> timer_;
  std::unique_ptr<CachingAllocator> cache_;
  std::atomic<std::size_t> limit_{Options::kUnlimited};
};

/// A PinnedMemoryResource gives containers of std::pmr pinned host memory, which asynchronous
/// copies to and from a GPU need.
///
///     cachalot::PinnedHostAllocator host(cachalot::cuda_devices().at(0));
///     cachalot::PinnedMemoryResource pinned(host);
///     std::pmr::vector<float> batch(1024, &pinned);
///     cudaMemcpyAsync(to, batch.data(), bytes, cudaMemcpyHostToDevice, stream);
///     host.record_stream(batch.data(), stream);  // batch may go at once
///
/// Device memory has no such resource: the containers write to their memory on the host.
///
/// Equality: two resources are equal if they have the same allocator.
/// Lifetime: a container may be destroyed after the allocator (as at the exit of the process); its
/// memory went back with the allocator. It must not outlive the resource.
/// Requires: no stream that is recorded on a container's memory captures a graph when the container
/// frees that memory; the process ends if one does, because a container's free cannot fail.
/// Thread safety: every method may be called from any thread at any time.
class PinnedMemoryResource final : public std::pmr::memory_resource {
 public:
  /// Makes a resource of memory of `host`.
  explicit PinnedMemoryResource(PinnedHostAllocator& host)
      : host_(&host), life_(host.cache().life()) {}
  /// Returns the allocator.
  PinnedHostAllocator& host() const { return *host_; }

 private:
  // Throws InvalidArgument for an alignment above 512 or that is not a power of two; OutOfMemory.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  PinnedHostAllocator* host_;
  std::weak_ptr<const void> life_;  // of the allocator
};

CACHALOT_END_API
