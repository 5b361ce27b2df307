/// @file
/// The detector of memory that a loop does not give back.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cachalot/allocation_site.h"
#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

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
/// A site is a call stack (allocation_site.h). At each step the detector samples the live bytes of
/// each site. A site is a leak if its last `window` samples pass three tests:
/// - Theil and Sen's slope, the median of the slopes of all pairs of samples, is positive. Single
///   outliers do not move it.
/// - Mann and Kendall's one-sided test has at least the confidence `min_confidence`.
/// - The median of the samples grows from the first third to the second and to the last, and the
///   largest sample is in the last third.
///
/// Constant and oscillating sites, and caches that are full, are no leaks. A cache that fills looks
/// like a leak until it is full.
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
