/// @file
/// The settings of the recorded history of changes.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <functional>
#include <vector>

#include "cachalot/change.h"

CACHALOT_BEGIN_API

/// A ContextRecorder makes the Context that is kept with a change. It is called without locks and
/// may be slow.
using ContextRecorder = std::function<Context()>;

/// HistoryOptions say which changes CachingAllocator::record_history keeps.
struct HistoryOptions {
  /// The changes that carry a Context; PyTorch's "record levels".
  enum class Contexts {
    never,  ///< no change
    state,  ///< segments
    alloc,  ///< segments and allocations
    all,    ///< segments, allocations and frees
  };
  bool enabled = true;                  ///< false stops recording and drops the entries
  std::size_t max_entries = 1;          ///< changes kept for each device, the newest; at least 1
  Contexts contexts = Contexts::never;  ///< the changes that carry a Context
  /// Makes the Contexts; required unless `contexts` is never.
  ContextRecorder recorder{};
  /// Returns the annotation of a change. Called for every change with the device's lock held: it
  /// must be fast and must not call the allocator.
  std::function<Context()> annotate{};
  bool clear = false;                  ///< drop the entries recorded so far
  std::vector<Change::Action> skip{};  ///< actions that are not recorded
};

CACHALOT_END_API
