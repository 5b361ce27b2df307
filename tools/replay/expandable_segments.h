// A model of PyTorch 2.11's own caching allocator with expandable_segments:True and default options otherwise: how much
// memory it holds while a trace is played. It reaches the figures that PyTorch itself reached on the recorded traces
// (data/traces/expandable.json), event for event the same maps and unmaps.
//
// Each stream has a segment of small blocks and one of large blocks: a range of addresses, larger than the device. Pages
// of 2 MiB (small) or 20 MiB (large) are mapped into it where a request finds no free block, and unmapped only when the
// device has no memory left. A free block serves requests of its own stream and kind alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

class ExpandableSegments {
 public:
  struct Pool;

  // A stretch of a segment: allocated, free, or unmapped. The blocks of a segment tile it, linked in address order.
  struct Block {
    std::uint64_t address = 0;
    std::size_t bytes = 0;
    Pool* pool = nullptr;
    Block* before = nullptr;
    Block* after = nullptr;
    bool is_mapped = false;
    bool is_allocated = false;
  };

  struct BySize {
    bool operator()(const Block* one, const Block* other) const {
      return one->bytes != other->bytes ? one->bytes < other->bytes : one->address < other->address;
    }
  };
  struct ByAddress {
    bool operator()(const Block* one, const Block* other) const { return one->address < other->address; }
  };

  // The blocks of one stream and kind that are not allocated.
  struct Pool {
    std::size_t page_bytes = 0;
    std::set<Block*, BySize> free;
    std::set<Block*, ByAddress> unmapped;
  };

  // `pools` are those of the streams, as Trace::pools: memory of a pool stays there.
  explicit ExpandableSegments(std::size_t device_bytes, std::vector<std::uint16_t> pools = {});
  ExpandableSegments(const ExpandableSegments&) = delete;
  ExpandableSegments& operator=(const ExpandableSegments&) = delete;

  // Returns the block, or nullptr where the device does not have enough memory. An allocation needs one byte at least.
  Block* allocate(std::size_t bytes, std::uint32_t stream);
  void free(Block* block);
  // Gives all pages without a live block back to the device, except those of memory pools.
  void release_cached();

  std::size_t reserved_bytes() const { return reserved_bytes_; }
  std::size_t peak_reserved_bytes() const { return peak_reserved_bytes_; }
  std::size_t maps() const { return maps_; }        // ranges that were mapped
  std::size_t unmaps() const { return unmaps_; }    // and unmapped
  std::size_t handles() const { return handles_; }  // that were created: one for each page of its segment

 private:
  Pool& pool_for(std::size_t bytes, std::uint32_t stream);
  Block* take_free(Pool& pool, std::size_t bytes);
  Block* grow(Pool& pool, std::size_t bytes);
  Block* find_room(Pool& pool, std::size_t bytes);
  Block* add_segment(Pool& pool);
  bool map(Block* block, std::size_t bytes);
  void unmap(Block* block);
  void split(Block* block, std::size_t bytes);
  void merge(Block* block, Block* neighbour);
  Block* make_block(const Block& block);
  void drop(Block* block);

  std::size_t device_bytes_;
  std::vector<std::uint16_t> pools_;
  std::uint64_t next_address_ = 0;
  std::map<std::uint32_t, Pool> small_;  // by stream
  std::map<std::uint32_t, Pool> large_;
  std::deque<Block> blocks_;
  std::vector<Block*> spare_;  // of blocks_, not in use

  std::size_t reserved_bytes_ = 0;
  std::size_t peak_reserved_bytes_ = 0;
  std::size_t maps_ = 0;
  std::size_t unmaps_ = 0;
  std::size_t handles_ = 0;
};

struct ExpandableFigures {
  std::size_t peak_reserved_bytes = 0;
  std::size_t reserved_bytes = 0;  // after the last event
  std::size_t maps = 0;
  std::size_t unmaps = 0;
  std::size_t handles = 0;  // that were created
  std::size_t ooms = 0;     // allocations that failed
};

// Returns the time in microseconds of the driver's calls that make memory, by LatencyModel::published: a handle is created and
// mapped for each page, and each range gets access by one call. Unmapping is not counted.
double driver_us_of_growth(const ExpandableFigures& figures);

// Returns what the model holds while it plays the trace once; with `until_failure` no further than to an allocation that fails.
ExpandableFigures play_on_expandable_segments(const Trace& trace, std::size_t device_bytes, bool until_failure = false);

}  // namespace cachalot::tools
