/// @file
/// What the groups of CachingAllocator's functions have in common.
#pragma once

#include "cachalot/require_cpp17.h"

#include <functional>
#include <memory>

CACHALOT_BEGIN_API

class AllocatorState;
class Front;

/// A FrontFactory makes the part of an allocator that sees every malloc and free before its heaps
/// do: guard_factory() of guard.h (library cachalot::diagnostics) makes the guard.
using FrontFactory = std::function<std::unique_ptr<Front>(AllocatorState&)>;

/// Names all devices of an allocator where a function takes the index of one.
inline constexpr int kAllDevices = -1;

/// An AllocatorGroup is a group of a CachingAllocator's functions. All groups of an allocator use
/// its devices and its options, which are not part of the interface.
class AllocatorGroup {
 public:
  AllocatorGroup(const AllocatorGroup&) = delete;
  AllocatorGroup& operator=(const AllocatorGroup&) = delete;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorGroup(AllocatorState& state) : state_(state) {}
  ~AllocatorGroup() = default;

  /// The state of the allocator, which all its groups share.
  AllocatorState& state_;  // NOLINT(readability-identifier-naming): the groups use it
};

CACHALOT_END_API
