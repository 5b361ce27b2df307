/// @file
/// Leaks: the detector, tracks of allocations, and the sites of both.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/call_stack.h"
#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// An AllocationSite is a call stack that allocates, with the live blocks that came from it.
/// LeakDetector and AllocationTrack report it. Bytes are those of blocks, as memory_allocated
/// counts.
struct AllocationSite {
  CallStack stack;             ///< empty: unknown, as for blocks restored by a checkpoint of a pool
  std::size_t live_bytes = 0;  ///< of the live blocks
  std::size_t live_blocks = 0;         ///< number of live blocks
  std::uint64_t allocated_blocks = 0;  ///< blocks allocated since the site was first seen
  /// Calls of LeakDetector::step since the oldest live block was allocated.
  std::uint64_t oldest_iterations = 0;
  double oldest_seconds = 0;  ///< seconds since the oldest live block was allocated
  /// The addresses of live blocks, the youngest first; at most kSomeAddresses.
  std::vector<Address> some_addresses;

  static constexpr std::size_t kSomeAddresses = 1024;  ///< the most addresses that are listed
};

/// Returns "1536 bytes in 3 blocks, the oldest 12 iterations (0.4 s) old", then a line for each
/// frame of the stack.
std::string to_string(const AllocationSite& site);
/// Returns a JSON object with the names of the members; the stack is an array of frames.
std::string to_json(const AllocationSite& site);

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

/// LeakDetectorOptions say how many iterations are compared, and how sure a report must be.
struct LeakDetectorOptions {
  std::size_t warm_up = 2;  ///< first iterations, in which everything grows: no samples are taken
  std::size_t window = 64;  ///< samples that are compared, the newest; at least 8
  /// Confidence that a reported site grows, in [0.5, 1). The false-positive probability is at most
  /// 1 - min_confidence for each site.
  double min_confidence = 0.999;
  /// Called when the detector takes samples by itself, with locks held: it may not block, throw or
  /// call the allocator.
  std::function<void()> on_sample{};
};

/// A Leak is a site whose live bytes grow.
struct Leak {
  AllocationSite site;             ///< the place that allocates
  double bytes_per_iteration = 0;  ///< growth: the median of the slopes of all pairs of samples
  double confidence = 0;           ///< that it grows, in [min_confidence, 1]
  std::size_t iterations = 0;      ///< samples that were compared
  /// Mean distance of two samples in allocations, where the program makes too few steps and the
  /// detector samples by itself; bytes_per_iteration is the growth over this distance. 0: steps.
  std::size_t sample_allocations = 0;
  std::size_t highest_bytes = 0;   ///< live when the last iteration ended, or now if that is more
  std::size_t highest_blocks = 0;  ///< as highest_bytes
};

/// A LeakReport is the state of a LeakDetector at one moment. Blocks allocated before the detector
/// was made are not in it.
struct LeakReport {
  std::uint64_t iterations = 0;  ///< calls of step() so far
  std::size_t live_bytes = 0;    ///< of the live blocks, as memory_allocated counts
  std::size_t live_blocks = 0;   ///< number of live blocks
  std::size_t site_count = 0;    ///< places that have live blocks
  std::size_t leak_count = 0;    ///< places whose live bytes grow, or grew until they were freed
  std::size_t sample_allocations = 0;  ///< as that of the leaks
  std::size_t reserved_bytes = 0;      ///< memory_reserved at the last step, of all devices
  std::size_t idle_bytes = 0;          ///< of these, the bytes in no block
  /// The growth of idle_bytes while reserved_bytes grows, too, and live memory grows less; 0 if it
  /// does not pass the tests of a leak.
  double idle_bytes_per_iteration = 0;
  std::vector<Leak> leaks;            ///< the places that grow fastest, in that order
  std::vector<AllocationSite> sites;  ///< the places with the most live bytes, in that order
};

/// A LeakDetector finds the places in a program whose live bytes grow from iteration to iteration.
///
///     cachalot::LeakDetector detector(allocator);
///     for (const Batch& batch : batches) {
///       train(batch);
///       detector.step();
///     }
///     std::puts(to_string(detector.report()).c_str());
///
/// A site is a call stack. At each step the detector samples the live bytes of
/// each site. A site is a leak if its last `window` samples pass three tests:
/// - Theil and Sen's slope, the median of the slopes of all pairs of samples, is positive. Single
///   outliers do not move it.
/// - Mann and Kendall's one-sided test has at least the confidence `min_confidence`.
/// - The median of the samples grows from the first third to the second and to the last, and the
///   largest sample is in the last third.
///
/// Constant and oscillating sites, and caches that are full, are not leaks. A cache that fills
/// looks like a leak until it is full.
///
/// A site is a leak, too, if samples of the whole run pass these tests and the largest is in the
/// last sixth: the distance of samples lets `window` of them cover all steps.
///
/// The detector also samples by itself, after a number of allocations, which doubles when `window`
/// samples are full, so that they cover the whole run. It judges by these samples where there are
/// fewer than warm_up + 8 steps, and by them as well where the program has gone on for the
/// allocations of four steps since the last one. Loading a model, or one long operation, then looks
/// like a leak while it lasts.
///
/// The detector does not know blocks that were allocated before it was made. Memory use is bounded
/// by the live blocks plus three times `window` samples per site. The detector may outlive the
/// allocator. Cost: while it exists, each allocation takes a call stack (docs/leaks.md has the
/// figure) and goes past the thread caches.
///
/// Thread safety: every method may be called from any thread; allocations of all threads are seen.
/// In a forked child step, leaks and report throw InvalidArgument (docs/process_life.md).
class LeakDetector {
 public:
  static constexpr std::size_t kListed = 20;  ///< sites that a report lists by default

  /// Starts to watch. Throws InvalidArgument for options out of their range.
  explicit LeakDetector(CachingAllocator& allocator, const LeakDetectorOptions& options = {});
  /// Stops to watch.
  ~LeakDetector();
  LeakDetector(const LeakDetector&) = delete;
  LeakDetector& operator=(const LeakDetector&) = delete;

  /// Ends an iteration and takes the samples.
  void step();

  /// Returns the sites that grow and have live blocks, the fastest first, at most `most`. Returns
  /// none before there are 8 samples, which is after warm_up + 8 steps or 8 allocations.
  std::vector<Leak> leaks(std::size_t most = kListed) const;
  /// Returns the whole state, with at most `most` leaks and `most` sites. A site that grew and has
  /// freed all its blocks since the last step is one of the leaks.
  LeakReport report(std::size_t most = kListed) const;

 private:
  class Watch;
  std::shared_ptr<Watch> watch_;
  CachingAllocator& allocator_;
  std::weak_ptr<const void> allocator_life_;
};

/// Returns the leak as lines of text.
std::string to_string(const Leak& leak);
/// Returns the report as lines of text.
std::string to_string(const LeakReport& report);
/// Returns a JSON object with the names of the members.
std::string to_json(const LeakReport& report);

CACHALOT_END_API
