/// @file
/// The account of what a part of a program allocated, freed and left.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachalot/allocation_site.h"
#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// A TrackReport says what happened while an AllocationTrack ran. Bytes are those of blocks, as
/// memory_allocated counts.
struct TrackReport {
  std::uint64_t allocated_blocks = 0;  ///< blocks allocated
  std::uint64_t allocated_bytes = 0;   ///< bytes allocated
  std::uint64_t freed_blocks = 0;      ///< blocks freed, those allocated before the track included
  std::uint64_t freed_bytes = 0;       ///< bytes of these
  std::uint64_t freed_earlier_blocks = 0;  ///< blocks freed that were allocated before the track
  std::uint64_t freed_earlier_bytes = 0;   ///< bytes of these
  std::size_t left_blocks = 0;             ///< blocks allocated and not freed
  std::size_t left_bytes = 0;              ///< bytes of these
  /// The most that allocated_bytes exceeded freed_bytes: the peak above the memory allocated at the
  /// start.
  std::size_t peak_bytes = 0;
  std::size_t site_count = 0;         ///< places that left something
  std::vector<AllocationSite> sites;  ///< the places that left most, in that order
};

/// An AllocationTrack counts what a part of a program allocates, frees and leaves.
///
///     cachalot::AllocationTrack track(allocator);
///     model.forward(batch);
///     std::puts(to_string(track.report()).c_str());
///
/// Allocations of all threads and devices count. A track may outlive the allocator.
/// Cost: while it runs, each allocation takes a call stack and goes past the thread caches.
///
/// Thread safety: every method may be called from any thread.
class AllocationTrack {
 public:
  static constexpr std::size_t kListed = 20;  ///< sites that a report lists by default

  /// Starts to count.
  explicit AllocationTrack(CachingAllocator& allocator);
  /// Stops to count.
  ~AllocationTrack();
  AllocationTrack(const AllocationTrack&) = delete;
  AllocationTrack& operator=(const AllocationTrack&) = delete;

  /// Stops to count; the report stays. A second call does nothing.
  void stop();
  /// Returns the counts so far, with at most `most` sites.
  /// Throws InvalidArgument in a forked child (docs/process_life.md).
  TrackReport report(std::size_t most = kListed) const;

 private:
  class Watch;
  std::shared_ptr<Watch> watch_;
  CachingAllocator& allocator_;
  std::weak_ptr<const void> allocator_life_;
};

/// Returns the report as lines of text.
std::string to_string(const TrackReport& report);
/// Returns a JSON object with the names of the members.
std::string to_json(const TrackReport& report);

CACHALOT_END_API
