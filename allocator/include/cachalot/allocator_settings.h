/// @file
/// Options and limits of an allocator.
#pragma once

#include "cachalot/require_cpp17.h"

#include <string_view>

#include "cachalot/allocator_group.h"
#include "cachalot/options.h"

CACHALOT_BEGIN_API

/// AllocatorSettings are the options of a CachingAllocator, the limit of its memory, and whether it
/// caches.
class AllocatorSettings : private AllocatorGroup {
 public:
  /// Applies options in their text form (options.h). `heap`, `guard` and `debug` cannot
  /// change after the allocator is made.
  /// Throws InvalidArgument, which names key, value and rule, and then applies nothing.
  void configure(std::string_view options);
  /// Replaces all options. If per_process_memory_fraction is unchanged, a fraction set by
  /// set_memory_fraction is kept; if `limit` is unchanged, a limit set by set_limit is. Throws as
  /// the function above.
  void configure(const Options& options);
  /// Returns the options.
  Options options() const;
  /// Limits the bytes held from the device to floor(fraction x total memory). 1 lifts the limit.
  /// Memory that is held already stays. With a limit of AllocatorLimits the lower one holds.
  /// Throws InvalidArgument unless `fraction` is in [0, 1].
  void set_memory_fraction(double fraction, int device = 0);
  /// Returns the fraction; 1 without a limit.
  double memory_fraction(int device = 0) const;
  /// Turns caching on or off. While it is off, allocations come from the device and go back to it
  /// at once, and the statistics do not contain them.
  void set_caching_enabled(bool enabled);
  /// Returns true if caching is on, which is the default.
  bool caching_enabled() const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorSettings(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorSettings() = default;
};

CACHALOT_END_API
