// Finds memory that a loop does not give back: the places in the program whose live bytes grow from iteration to iteration.
//
//   cachalot::LeakDetector detector(allocator);
//   for (const Batch& batch : batches) {
//     train(batch);
//     detector.step();
//   }
//   std::puts(to_string(detector.report()).c_str());
//
// A site is a call stack (allocation_site.h). At each step its live bytes are noted, and of the last `window` notes it is
// asked whether they grow: Theil and Sen's slope, the median of the slopes of all pairs, which single outliers do not move;
// the one-sided test of Mann and Kendall for how sure that is; and that they grew from the first third of the notes to
// the second, to the last, and still do. So neither what is constant, nor what swings, nor a cache that has filled up is a
// leak; a cache that is filling up looks like one until it is full.
//
// Memory that was allocated before the detector was made is unknown to it. What it keeps is bounded by the live blocks, and
// `window` numbers a site. While it lives each allocation takes a call stack: microseconds (docs/leaks.md has the figure).
//
// Thread safety: every method may be called from any thread; allocations of all threads are seen. The detector may outlive the
// allocator. In a forked child step, leaks and report are refused (docs/process_life.md).
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachalot/allocation_site.h"
#include "cachalot/caching_allocator.h"

namespace cachalot {

struct LeakDetectorOptions {
  std::size_t warm_up = 2;  // first iterations, in which everything grows: no notes are taken
  std::size_t window = 64;  // notes that are looked at; at least 8
  double min_confidence =
      0.999;  // in [0.5, 1): a chance of at most 1 - this that what does not grow looks as if it did
};

struct Leak {
  AllocationSite site;
  double bytes_per_iteration = 0;
  double confidence = 0;       // in [min_confidence, 1]
  std::size_t iterations = 0;  // that were looked at
};

struct LeakReport {
  std::uint64_t iterations = 0;  // calls of step()
  std::size_t live_bytes = 0;    // of everything that was allocated since the detector was made
  std::size_t live_blocks = 0;
  std::size_t site_count = 0;         // places that have live blocks
  std::size_t leak_count = 0;         // that grow
  std::vector<Leak> leaks;            // the steepest, first things first
  std::vector<AllocationSite> sites;  // with the most live bytes, whether they grow or not
};

class LeakDetector {
 public:
  static constexpr std::size_t kListed = 20;  // sites that a report lists, unless it is asked for more

  // Watches from now on. Throws InvalidArgument for options out of their range.
  explicit LeakDetector(CachingAllocator& allocator, const LeakDetectorOptions& options = {});
  ~LeakDetector();
  LeakDetector(const LeakDetector&) = delete;
  LeakDetector& operator=(const LeakDetector&) = delete;

  void step();  // at the end of each iteration

  // The sites that grow, the steepest first; none before 8 notes, that is warm_up + 8 steps.
  std::vector<Leak> leaks(std::size_t most = kListed) const;
  LeakReport report(std::size_t most = kListed) const;

 private:
  class Watch;
  std::shared_ptr<Watch> watch_;
  CachingAllocator& allocator_;
  std::weak_ptr<const void> allocator_life_;
};

std::string to_string(const Leak& leak);
std::string to_string(const LeakReport& report);
std::string to_json(const LeakReport& report);

}  // namespace cachalot
