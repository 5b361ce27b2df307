/// @file
/// The types of private pools: memory apart, for a CUDA graph or a user (PyTorch's MemPool), which
/// may sleep.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// A SegmentProvider supplies the segments of a private pool instead of the device.
/// Thread safety: its functions may be called from any thread, with none of the allocator's locks
/// held.
class SegmentProvider {
 public:
  virtual ~SegmentProvider() = default;
  /// Returns the address of a new segment of `bytes` bytes, or nullopt if there is no memory.
  ///
  /// The address must be a multiple of 512 and below 2^48, and no 1 MiB page that the segment
  /// touches may hold memory of another device. A misaligned or too high segment goes back at once,
  /// and the request fails with InvalidArgument.
  virtual std::optional<Address> allocate_segment(std::size_t bytes, int device, Stream stream) = 0;
  /// Takes back a segment that allocate_segment returned. Arguments are those of its allocation.
  virtual void free_segment(Address address, std::size_t bytes, int device, Stream stream) = 0;
};

/// The reason why allocations are redirected into a private pool.
///
/// During a capture the device's event queries, synchronization and cache flush are off for every
/// thread: CUDA forbids them while a stream captures in its global mode. A thread's redirection
/// leaves other threads as they are.
enum class RedirectFor {
  thread,   ///< allocations of the calling thread (PyTorch's use_mem_pool)
  capture,  ///< allocations for streams that capture a graph
  /// Allocations alone: it holds back neither empty_cache nor the reuse of memory that was freed
  /// on the thread (PyTorch's rule since 2.13). begin_capture reports captures.
  requests,
};
/// A StreamFilter returns true for the streams whose allocations go to the pool. It is called with
/// the device's lock held and must not call the allocator.
using StreamFilter = std::function<bool(Stream)>;

/// A PoolCheckpoint describes the blocks of a pool at one moment, to return to later (as PyTorch's
/// cudagraph trees do). CachingAllocator::checkpoint_pool makes it, restore_pool takes it.
struct PoolCheckpoint {
  /// One block.
  struct Block {
    Address address = 0;     ///< where the block begins
    std::size_t size = 0;    ///< bytes
    bool allocated = false;  ///< false if it is free
  };
  /// One segment. Invariant: `blocks` tile the segment.
  struct Segment {
    Stream stream = nullptr;          ///< stream that its memory is for
    PoolKind kind = PoolKind::small;  ///< size class of its blocks
    std::vector<Block> blocks;        ///< in address order
  };
  PoolId pool;                    ///< the pool
  std::vector<Segment> segments;  ///< all segments of the pool
};

/// A RestoreResult lists the allocations that CachingAllocator::restore_pool ended and made.
struct RestoreResult {
  std::vector<void*> freed;    ///< allocations that were live in the pool before
  std::vector<void*> created;  ///< live blocks of the checkpoint; the caller owns them now
};

/// A TagMemory describes the memory of a tag (CachingAllocator::begin_tagged) on one device. Sizes
/// are in bytes.
struct TagMemory {
  std::string tag;                  ///< the name that begin_tagged was given
  int device = 0;                   ///< index of the device
  bool is_asleep = false;           ///< true until restore_physical: nothing is allocated from it
  std::size_t allocated_bytes = 0;  ///< blocks of live allocations, asleep or not
  std::size_t reserved_bytes = 0;   ///< held from the device
  std::size_t asleep_bytes = 0;     ///< given back to the device until restore_physical
  std::size_t requested_bytes = 0;  ///< asked for by live allocations, asleep or not
  PoolId pool;                      ///< the private pool that the tag names on every device
  bool is_evictable = false;        ///< it gives way when memory runs short (make_evictable)
  int priority = 0;                 ///< of an evictable tag: the lowest gives way first
  std::size_t holds = 0;            ///< of ensure: while there are any, the tag does not give way
};

/// Returns a JSON array of objects with the members' names as keys; `pool` is an array of its two
/// numbers.
std::string to_json(const std::vector<TagMemory>& tags);

/// Keep says where the content of memory is while the memory sleeps.
enum class Keep {
  nothing,  ///< it is lost
  pinned,   ///< in pinned host memory
  file,     ///< in a file that has lost its name, so that it is gone with the process at the latest
};

/// SleepOptions say what becomes of the content of memory that goes to sleep.
struct SleepOptions {
  Keep keep = Keep::nothing;  ///< where the content is meanwhile
  std::string folder;         ///< the existing folder of the file; empty without Keep::file
};

/// EvictOptions say how the memory of a tag gives way when other memory runs short.
struct EvictOptions {
  int priority = 0;    ///< the tag with the lowest gives way first
  SleepOptions sleep;  ///< where the content is meanwhile
  /// Makes the content again on the device, after Keep::nothing: ensure calls it, with none of the
  /// allocator's locks held, before it returns. It may use the tag's memory and the allocator. If
  /// it throws, ensure throws the same, and the next ensure calls it again. It may be empty.
  std::function<void(int device)> refill;
};

CACHALOT_END_API
