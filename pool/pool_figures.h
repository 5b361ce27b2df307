// What a pool counts: its slots and bytes, its tensors in use, and what it did (PoolStats).
// Thread safety: none; the pool's mutex guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/thread_local_state.h"
#include "cachalot/tensor_pool.h"
#include "slots.h"

CACHALOT_BEGIN

class PoolFigures {
 public:
  void slab_allocated(const PoolSlab& slab) {
    ++stats_.allocations;
    stats_.slots += slab.count;
    stats_.bytes += slab.bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.bytes);
  }
  void slab_deallocated(const PoolSlab& slab) {
    stats_.slots -= slab.count;
    stats_.bytes -= slab.bytes;
  }
  void host_waited() { ++stats_.host_waits; }
  void streams_waited(std::uint64_t waits) { stats_.stream_waits += waits; }
  void slot_used_first() { ++first_uses_; }
  // Adds what a thread acquired and released since the last time.
  void add(const ThreadSum::Gathered& news);

  std::size_t slots() const { return stats_.slots; }
  std::size_t bytes() const { return stats_.bytes; }
  std::int64_t live() const { return live_; }  // as gathered
  PoolStats stats() const;
  // Returns "" or what is wrong. Requires: all threads' sums are gathered, and none changes.
  std::string first_broken_rule() const;

 private:
  PoolStats stats_;  // but for `hits` and `live`
  std::uint64_t first_uses_ = 0;
  std::int64_t live_ = 0;
};

CACHALOT_END
