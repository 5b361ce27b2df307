// Everything that happens to memory is one Change value. Statistics are its fold, the trace its last N values, and a
// snapshot the picture it leads to; a test holds the three against each other.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "cachalot/device.h"
#include "cachalot/pool_id.h"

namespace cachalot {

// Opaque evidence of where in the program a change came from (a Python stack, say), made by the user's recorder.
using Context = std::shared_ptr<void>;

struct Change {
  // The first nine are PyTorch's trace actions, with its names; the rest are ours and are left out of its JSON.
  enum class Action : std::uint8_t {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    snapshot,
    oom,
    synchronize,  // waited for every pending event
    retry,        // asked the device again after giving back the cache
    empty_cache,
  };

  Action action = Action::alloc;
  PoolKind pool_kind = PoolKind::small;
  int device = 0;
  Address address = 0;          // oom: the device's free bytes, as in PyTorch's trace
  std::size_t bytes = 0;        // alloc, free_*: as requested; segment_*: of the segment; oom: of the segment wanted;
                                // snapshot: of the blocks in use in it
  std::size_t block_bytes = 0;  // alloc, free_*: of the block
  Stream stream = nullptr;
  PoolId pool{};
  std::int64_t time_us = 0;  // Device::clock_us
  // How this change moved the inactive_split statistics (free blocks that are part of a split segment).
  std::int64_t inactive_split_blocks = 0;
  std::int64_t inactive_split_bytes = 0;
  Context context{};     // null unless recorded
  Context annotation{};  // what HistoryOptions::annotate said; null without
};

constexpr const char* to_string(Change::Action action) {
  switch (action) {
    case Change::Action::alloc:
      return "alloc";
    case Change::Action::free_requested:
      return "free_requested";
    case Change::Action::free_completed:
      return "free_completed";
    case Change::Action::segment_alloc:
      return "segment_alloc";
    case Change::Action::segment_free:
      return "segment_free";
    case Change::Action::segment_map:
      return "segment_map";
    case Change::Action::segment_unmap:
      return "segment_unmap";
    case Change::Action::snapshot:
      return "snapshot";
    case Change::Action::oom:
      return "oom";
    case Change::Action::synchronize:
      return "synchronize";
    case Change::Action::retry:
      return "retry";
    case Change::Action::empty_cache:
      return "empty_cache";
  }
  return "unknown";
}

// Called for every change, under the device's lock: must be quick and must not call the allocator.
using ChangeTracker = std::function<void(const Change&)>;

}  // namespace cachalot
