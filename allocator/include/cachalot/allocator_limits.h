/// @file
/// Limits at run time: how much memory an allocator holds, at most and beforehand.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <optional>
#include <string>

#include "cachalot/allocator_group.h"
#include "cachalot/memory_limit.h"

CACHALOT_BEGIN_API

/// LimitFigures are the limits of one device and what counts against them, at one moment.
struct LimitFigures {
  int device = 0;                          ///< index of the device
  std::optional<std::size_t> limit_bytes;  ///< the lowest limit of held bytes; empty without one
  /// The text of that limit's setting: `limit:20GiB` (the option), `set_limit("20GiB")`,
  /// `per_process_memory_fraction:0.5` (the option) or `set_memory_fraction(0.5)`.
  std::string set_by;
  std::optional<std::size_t> soft_limit_bytes;  ///< the soft limit; empty without one
  std::size_t held_bytes = 0;                   ///< held from the device, in use or cached
  std::size_t reservation_bytes = 0;            ///< of reserve, what no stream has used yet
};

/// AllocatorLimits are the functions of a CachingAllocator that bound, lower and raise the memory
/// that it holds from a device. Held memory is allocated and cached memory: the statistic
/// reserved_bytes. Memory that is allocated while caching is off does not count.
class AllocatorLimits : private AllocatorGroup {
 public:
  /// Limits the bytes held from the device, beside set_memory_fraction: of the two limits the lower
  /// one holds. Growth that would exceed the limit gives back cached memory first, as growth on a
  /// full device does, and then throws OutOfMemory, which names the limit and its setting; the
  /// device is not asked. MemoryLimit::Base::none lifts this limit.
  /// If more is held than the limit allows, cached memory is given back as by trim; memory in use
  /// stays valid, and growth is refused until less is held.
  /// Throws CudaError if the device cannot tell its free memory; the limit is then as before.
  /// Blocks: as trim, if more is held than the limit allows.
  void set_limit(const MemoryLimit& limit, int device = 0);
  /// Sets the bytes above which `callback` is called: once, until held memory has been at or below
  /// them again. If more is held already, it is called at the next growth.
  /// MemoryLimit::Base::none lifts the soft limit; `callback` may then be empty.
  /// Throws InvalidArgument for an empty callback, CudaError as set_limit.
  void set_soft_limit(const MemoryLimit& limit, SoftLimitCallback callback, int device = 0);
  /// Returns the limits and what counts against them.
  LimitFigures limit_figures(int device = 0) const;

  /// Gives cached memory back to the device as long as at least `keep_bytes` stay held, without a
  /// wait for the device's work (no cudaDeviceSynchronize). Memory in use is not touched; memory of
  /// private pools and of tags stays.
  /// Over heap:pages, memory goes back whose work is done by now, in handles (page_size_mb); other
  /// memory stays cached. Memory of a stream that may have been destroyed meanwhile stays as well:
  /// see the option immortal_streams.
  /// Over heap:segments, whole free segments go back by cudaFree, which itself waits for the work
  /// that is queued on the device. Over heap:async they go back behind the work of their streams
  /// (cudaFreeAsync); CUDA's pool returns them at its next synchronization.
  /// Does nothing while a stream captures a graph.
  /// Returns the bytes given back. Throws CudaError; what the device refused stays cached.
  std::size_t trim(std::size_t keep_bytes, int device = 0);

  /// Takes memory from the device beforehand, until `bytes` bytes are cached that no stream has
  /// used. They serve requests of every stream but those of private pools, without a driver call:
  /// over heap:pages of all sizes; over the other heaps, for the stream that asks first, sizes of
  /// more than 1 MiB, and from a 32nd of the bytes (at least 2 MiB) smaller ones. Memory that is
  /// cached already is bound to streams and does not count.
  /// Garbage collection does not give the memory back. trim, empty_cache and the recovery of a
  /// request that finds no memory do.
  /// Throws OutOfMemory if the device or a limit does not have the room, with as much held as
  /// before, or less, since cached memory was given back first. Throws InvalidArgument for 1 EiB
  /// and more, and while a stream captures a graph.
  void reserve(std::size_t bytes, int device = 0);

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorLimits(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorLimits() = default;
};

CACHALOT_END_API
