/// @file
/// Sleep of memory: tags and pools that give memory back and get it back.
#pragma once

#include "cachalot/require_cpp17.h"

#include <string_view>
#include <vector>

#include "cachalot/allocator_group.h"
#include "cachalot/pool_id.h"
#include "cachalot/private_pool.h"
#include "cachalot/span.h"

CACHALOT_BEGIN_API

/// AllocatorSleep are the functions of a CachingAllocator that put the memory of a tag or of a
/// private pool to sleep and wake it.
class AllocatorSleep : private AllocatorGroup {
 public:
  /// Starts a region: until end_tagged, allocations of the calling thread belong to the tag.
  /// Regions nest, and several threads may be in regions of one tag. A tag names a private pool of
  /// each device.
  /// Throws InvalidArgument for an empty tag.
  void begin_tagged(std::string_view tag, int device = kAllDevices);
  /// Ends the calling thread's innermost region of the tag.
  /// Throws InvalidArgument if the thread is in no region of the tag.
  void end_tagged(std::string_view tag, int device = kAllDevices);

  /// Puts the tag's memory to sleep: gives it back to the device until restore_physical, which
  /// brings memory to the same addresses. Needs heap:pages. Does nothing if the tag is asleep.
  ///
  /// Allocations stay live and may be freed. They count as allocated, not as reserved. Until
  /// restore_physical they must not be used, and an allocation from the tag throws InvalidArgument.
  /// Their content is lost, or with `save` kept in pinned host memory and restored. Free memory
  /// loses its content; it comes back if the pool is in use, since a graph may know its addresses.
  ///
  /// Devices follow one after the other: if one throws, those before it are done, and the call may
  /// be repeated. After a CudaError a part of the memory may be asleep; the saved content is kept,
  /// and a further call goes on.
  ///
  /// Requires: work on the memory is done, or is on its own device; other GPUs are not waited for.
  /// Throws InvalidArgument for an unknown tag, another heap, and while a stream of the device
  /// captures.
  /// Throws OutOfMemory if the host has too little pinned memory to save to; that device's memory
  /// is then as before.
  /// Blocks: until the device's work is done.
  void release_physical(std::string_view tag, bool save = false, int device = kAllDevices);
  /// Wakes the tag: brings memory, and the saved content, to the same addresses. Does nothing if
  /// the tag is awake. Gives back cached memory of others to make room; memory limits hold.
  /// Throws OutOfMemory if there is too little memory; the device's memory is then asleep as
  /// before, except for parts that the device did not take back. Otherwise as release_physical.
  void restore_physical(std::string_view tag, int device = kAllDevices);
  /// Puts several tags to sleep, one after the other: release_tags({"weights", "kv_cache"}).
  /// Throws InvalidArgument as release_physical, and does nothing then if a tag is unknown. After
  /// any other exception the tags before the one that failed are asleep, and the call may be
  /// repeated.
  void release_tags(Span<const std::string_view> tags, bool save = false, int device = kAllDevices);
  /// Wakes several tags, one after the other; otherwise as release_tags and restore_physical.
  void restore_tags(Span<const std::string_view> tags, int device = kAllDevices);
  /// Puts a private pool to sleep, such as a CUDA graph's or a MemPool; otherwise as the function
  /// of a tag.
  /// Throws InvalidArgument also if no device has the pool, and for a pool with a SegmentProvider.
  void release_physical(PoolId pool, bool save = false, int device = kAllDevices);
  /// Wakes a private pool; otherwise as the function of a tag.
  /// Throws InvalidArgument also if no device has the pool.
  void restore_physical(PoolId pool, int device = kAllDevices);
  /// Returns the memory of each tag on each device, sorted by tag and device, without the devices
  /// on which a tag holds nothing and is awake.
  /// Throws InvalidArgument in a forked child.
  std::vector<TagMemory> tags() const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorSleep(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorSleep() = default;
};

CACHALOT_END_API
