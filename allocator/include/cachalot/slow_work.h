/// @file
/// The observer of the calls that take long.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>

CACHALOT_BEGIN_API

/// A SlowWork describes one stretch of work that an allocator does beside handing out free blocks.
struct SlowWork {
  /// The kinds of work.
  enum class Kind : std::uint8_t {
    grow,              ///< a request that no free block of its stream serves
    empty_cache,       ///< CachingAllocator::empty_cache
    release_physical,  ///< AllocatorSleep::release_physical
    restore_physical,  ///< AllocatorSleep::restore_physical
  };
  Kind kind = Kind::grow;  ///< the kind of work
  int device = 0;          ///< index of the device
  std::size_t bytes = 0;   ///< for grow: of the request; otherwise 0
};

/// Returns the name of the kind: "grow", "empty_cache", ...
constexpr const char* to_string(SlowWork::Kind kind) {
  switch (kind) {
    case SlowWork::Kind::grow:
      return "grow";
    case SlowWork::Kind::empty_cache:
      return "empty_cache";
    case SlowWork::Kind::release_physical:
      return "release_physical";
    case SlowWork::Kind::restore_physical:
      return "restore_physical";
  }
  return "unknown";
}

/// A SlowWorkObserver observes when each SlowWork begins and ends, on the thread that does the
/// work.
/// Derive from it and pass it to CachingAllocator::set_slow_work_observer.
///
/// Both functions are called with the device's lock held, or with none. Calls for different devices
/// and threads may run concurrently.
/// Requires: the functions are fast, do not call the allocator, and take no lock that a thread may
/// hold while it calls the allocator, such as Python's GIL.
/// Cost: without an observer a slow path tests one pointer. Other calls cost nothing more, with or
/// without one.
class SlowWorkObserver {
 public:
  virtual ~SlowWorkObserver() = default;
  /// Called when the work begins.
  virtual void on_begin(const SlowWork& work) noexcept = 0;
  /// Called when the work ends, by an exception as well.
  virtual void on_end(const SlowWork& work) noexcept = 0;
};

CACHALOT_END_API
