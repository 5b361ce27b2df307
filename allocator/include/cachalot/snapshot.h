/// @file
/// The snapshot of all memory that an allocator holds.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <string>
#include <vector>

#include "cachalot/change.h"
#include "cachalot/options.h"

CACHALOT_BEGIN_API

/// A BlockSnapshot describes one block of a segment.
/// Names and states are those of torch.cuda.memory_snapshot (PyTorch 2.11).
struct BlockSnapshot {
  /// The state of a block.
  enum class State : std::uint8_t {
    active_allocated,     ///< allocated
    active_pending_free,  ///< freed; other streams may still use it
    inactive,             ///< free
  };
  Address address = 0;   ///< where the block begins
  std::size_t size = 0;  ///< bytes of the block
  /// Bytes that were asked for; of an inactive block, in its last use.
  std::size_t requested_size = 0;
  State state = State::inactive;  ///< allocated, waiting or free
  Context context;                ///< where it was allocated, if recorded
};

/// A SegmentSnapshot describes one segment and its blocks.
/// Invariant: `blocks` tile the segment.
struct SegmentSnapshot {
  int device = 0;                  ///< index of the device
  Address address = 0;             ///< where the segment begins
  std::size_t total_size = 0;      ///< bytes of the segment
  std::size_t allocated_size = 0;  ///< bytes in allocated blocks
  /// Bytes in blocks that are allocated or wait for other streams.
  std::size_t active_size = 0;
  std::size_t requested_size = 0;  ///< bytes asked for by active blocks
  std::size_t asleep_size = 0;     ///< bytes without memory until restore_physical; not reserved
  Stream stream = nullptr;         ///< stream that its memory is for
  PoolKind segment_type = PoolKind::small;  ///< size class of its blocks
  PoolId segment_pool_id;                   ///< the pool that it belongs to
  bool is_expandable = false;               ///< true over heap:pages
  Context context;                          ///< where its first allocation was, if recorded
  std::vector<BlockSnapshot> blocks;        ///< in address order
};

/// A Snapshot describes all memory that an allocator holds at one moment. A plain value.
struct Snapshot {
  std::vector<SegmentSnapshot> segments;           ///< of all devices; of each in address order
  std::vector<std::vector<Change>> device_traces;  ///< a trace for each device, oldest entry first
  Options options;                                 ///< the allocator's options
};

/// Returns a JSON object with the keys of torch.cuda.memory._snapshot, which PyTorch's memory
/// viewer opens: segments, device_traces, allocator_settings, external_annotations. Contexts are
/// opaque, so that "frames" are empty. Segments that are asleep also have the key asleep_size.
std::string to_json(const Snapshot& snapshot);

CACHALOT_END_API
