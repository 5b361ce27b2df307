/// @file
/// The events that happen to memory, as values.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>

#include "cachalot/device.h"
#include "cachalot/pool_id.h"

CACHALOT_BEGIN_API

/// A Context is an opaque value that says where in the program a change came from, such as a Python
/// stack. A ContextRecorder (history.h) makes it; the allocator only keeps it.
using Context = std::shared_ptr<void>;

/// A Change describes one thing that happened to memory. A trace is the last Changes, and
/// statistics and snapshots agree with the sum of all Changes.
struct Change {
  /// The kinds of changes. The first nine are the actions of PyTorch's traces, under PyTorch's
  /// names; JSON leaves out the others.
  enum class Action : std::uint8_t {
    alloc,           ///< a block was handed out
    free_requested,  ///< the caller freed a block
    /// A freed block became free: at once, or when other streams were done with it.
    free_completed,
    segment_alloc,  ///< a segment came from the device
    segment_free,   ///< a segment went back to the device
    segment_map,    ///< pages were mapped (page heap)
    segment_unmap,  ///< pages were unmapped (page heap)
    snapshot,       ///< a snapshot was taken
    oom,            ///< a request failed for want of memory
    synchronize,    ///< the allocator waited for all pending events
    retry,          ///< the allocator gave its cache back and asked the device again
    empty_cache,    ///< empty_cache was called
    annotate,       ///< a live allocation was annotated (PyTorch's since 2.14)
  };

  Action action = Action::alloc;         ///< the kind of the change
  PoolKind pool_kind = PoolKind::small;  ///< size class of the block or segment
  int device = 0;                        ///< index of the device
  /// Address of the block or segment. For oom: bytes that were free on the device, as in PyTorch.
  Address address = 0;
  /// Bytes. For alloc, free_* and annotate: as requested; for segment_*: of the segment; for oom:
  /// of the segment that was wanted; for snapshot: of the blocks in use.
  std::size_t bytes = 0;
  std::size_t block_bytes = 0;  ///< for alloc and free_*: bytes of the block
  Stream stream = nullptr;      ///< stream that the memory is for
  PoolId pool{};                ///< private pool, or the default pool
  std::int64_t time_us = 0;     ///< Device::clock_us, microseconds
  /// By how many blocks this change moved the statistic inactive_split (free blocks that are part
  /// of a split segment).
  std::int64_t inactive_split_blocks = 0;
  std::int64_t inactive_split_bytes = 0;  ///< the same in bytes
  Context context{};                      ///< null unless recorded
  Context annotation{};    ///< result of HistoryOptions::annotate, or what `annotate` was given
  bool is_placed = false;  ///< part of an allocate_at, which may also hand out and free a prefix
};

/// Returns the name of the action: "alloc", "free_requested", ...
constexpr const char* to_string(Change::Action action) {
  constexpr const char* kNames[] = {
      "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap",  "snapshot",       "oom",           "synchronize",
      "retry",       "empty_cache",    "annotate",       "unknown"};  // in the order of Action
  const auto number = static_cast<std::size_t>(action);
  return kNames[number <= static_cast<std::size_t>(Change::Action::annotate)
                    ? number
                    : std::size(kNames) - 1];
}

/// A ChangeTracker is called for every change with the device's lock held. It must be fast and must
/// not call the allocator.
using ChangeTracker = std::function<void(const Change&)>;

CACHALOT_END_API
