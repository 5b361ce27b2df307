// A picture of all memory held: every segment, every block in it, and the recorded trace. A plain value.
// Field names and states are those of torch.cuda.memory_snapshot (PyTorch 2.11), so its viewers open the JSON.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <string>
#include <vector>

#include "cachalot/change.h"
#include "cachalot/options.h"

namespace cachalot {

struct BlockSnapshot {
  enum class State : std::uint8_t { active_allocated, active_pending_free, inactive };
  Address address = 0;
  std::size_t size = 0;            // bytes
  std::size_t requested_size = 0;  // bytes; of an inactive block: of its last use
  State state = State::inactive;
  Context context;  // where it was allocated, if recorded
};

struct SegmentSnapshot {
  int device = 0;
  Address address = 0;
  std::size_t total_size = 0;      // bytes
  std::size_t allocated_size = 0;  // bytes in allocated blocks
  std::size_t active_size = 0;     // the same and blocks waiting for other streams
  std::size_t requested_size = 0;  // bytes asked for by active blocks
  std::size_t asleep_size = 0;     // bytes without memory until restore_physical: not reserved
  Stream stream = nullptr;
  PoolKind segment_type = PoolKind::small;
  PoolId segment_pool_id;
  bool is_expandable = false;
  Context context;                    // where its first allocation was, if recorded
  std::vector<BlockSnapshot> blocks;  // in address order, tiling the segment
};

struct Snapshot {
  std::vector<SegmentSnapshot> segments;           // by address
  std::vector<std::vector<Change>> device_traces;  // one a device, oldest first
  Options options;
};

// A JSON object with torch.cuda.memory._snapshot's keys: segments, device_traces, allocator_settings,
// external_annotations. Contexts are opaque and leave empty "frames".
std::string to_json(const Snapshot& snapshot);

}  // namespace cachalot
