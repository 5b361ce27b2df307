// Private pools: memory of its own for a CUDA graph or for whoever asks (PyTorch's MemPool).
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/pool_id.h"

namespace cachalot {

// Where the segments of a private pool come from, instead of the device.
class SegmentProvider {
 public:
  virtual ~SegmentProvider() = default;
  // An address that is a multiple of 512 and below 2^48, whose MiBs hold no other device's memory; nullopt when there is
  // none. A misaligned or too high one goes back at once, and the request fails with InvalidArgument.
  virtual std::optional<Address> allocate_segment(std::size_t bytes, int device, Stream stream) = 0;
  virtual void free_segment(Address address, std::size_t bytes, int device, Stream stream) = 0;
};

// Why allocations are redirected into a pool: for the calling thread (PyTorch's use_mem_pool) or for streams that
// capture a graph. During a capture the device's event queries, synchronization and cache flush are off, for every
// thread, as CUDA's capture rules want; a thread's redirection leaves other threads as they are.
enum class RedirectFor { thread, capture };
using StreamFilter = std::function<bool(Stream)>;

// The blocks of a pool at one moment, to return to later (PyTorch's cudagraph trees).
struct PoolCheckpoint {
  struct Block {
    Address address = 0;
    std::size_t size = 0;
    bool allocated = false;
  };
  struct Segment {
    Stream stream = nullptr;
    PoolKind kind = PoolKind::small;
    std::vector<Block> blocks;  // in address order, tiling the segment
  };
  PoolId pool;
  std::vector<Segment> segments;
};

struct RestoreResult {
  std::vector<void*> freed;    // were allocated in the pool before
  std::vector<void*> created;  // are allocated now: the checkpoint's live blocks; the caller owns them
};

}  // namespace cachalot
