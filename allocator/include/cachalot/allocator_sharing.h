/// @file
/// Sharing of memory with other processes and other GPUs.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>

#include "cachalot/allocator_group.h"
#include "cachalot/shared_memory.h"

CACHALOT_BEGIN_API

/// AllocatorSharing are the functions of a CachingAllocator that share memory with other processes
/// and other GPUs.
class AllocatorSharing : private AllocatorGroup {
 public:
  /// Returns the number of physical handles that the live allocation `ptr` lies in; 1 over
  /// heap:segments.
  std::size_t handle_count(const void* ptr) const;
  /// Returns what other processes need to open the live allocation `ptr`. Its descriptors stay the
  /// allocator's and are open as long as `ptr` lives. All memory of the same handles or segment can
  /// be reached through them.
  /// Throws InvalidArgument if the memory is asleep. Memory shared before release_physical does not
  /// show the memory that restore_physical brings.
  SharedMemory share(const void* ptr);
  /// Returns what share returns, for an allocation in one handle.
  /// Throws InvalidArgument also for an allocation in several handles.
  SharedMemory share_contiguous(const void* ptr);
  /// Opens memory that another process shared, on the device whose memory it is. Returns the
  /// address in this process where the segment or the first handle begins; the allocation is
  /// memory.offset behind. Descriptors in `memory` must be of this process (sent over a socket, or
  /// taken by pidfd_getfd) and stay the caller's.
  void* open_shared(const SharedMemory& memory, int device = 0);
  /// Closes what open_shared returned. Each open_shared needs one close_shared. While a graph is
  /// captured, and after a CudaError of this function, the memory stays mapped until the next
  /// close_shared.
  /// Throws InvalidArgument if `base` is not open.
  /// Blocks: until this device's work is done; work of its peers is not waited for.
  void close_shared(void* base);

  /// Allows work of `device` to use memory of `peer`, allocated before or later:
  /// cudaDeviceEnablePeerAccess, for heap:pages access to each mapping, and access to the pool of
  /// CUDA's that heap:async uses.
  /// Throws InvalidArgument if both are one device. A call that fails may have opened a part and
  /// may be repeated.
  void enable_peer_access(int device, int peer);

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorSharing(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorSharing() = default;
};

CACHALOT_END_API
