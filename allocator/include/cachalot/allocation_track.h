// What a stretch of a program allocated, freed and left behind.
//
//   cachalot::AllocationTrack track(allocator);
//   model.forward(batch);
//   std::puts(to_string(track.report()).c_str());
//
// All threads' allocations count. Thread safety: every method may be called from any thread. A track may outlive the
// allocator; in a forked child report is refused (docs/process_life.md). While it runs each allocation takes a call stack.
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

struct TrackReport {
  // Bytes are those of blocks, as memory_allocated counts them.
  std::uint64_t allocated_blocks = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t freed_blocks = 0;  // those that were there before, too
  std::uint64_t freed_bytes = 0;
  std::uint64_t freed_earlier_blocks = 0;  // of the freed, those that were there before
  std::uint64_t freed_earlier_bytes = 0;
  std::size_t left_blocks = 0;  // allocated and not freed
  std::size_t left_bytes = 0;
  std::size_t peak_bytes = 0;         // the most that was allocated at a time, over what there was at the beginning
  std::size_t site_count = 0;         // places that left something
  std::vector<AllocationSite> sites;  // those that left most, first
};

class AllocationTrack {
 public:
  static constexpr std::size_t kListed = 20;  // sites that a report lists, unless it is asked for more

  explicit AllocationTrack(CachingAllocator& allocator);  // from now on
  ~AllocationTrack();
  AllocationTrack(const AllocationTrack&) = delete;
  AllocationTrack& operator=(const AllocationTrack&) = delete;

  void stop();  // what happens from now on does not count
  TrackReport report(std::size_t most = kListed) const;

 private:
  class Watch;
  std::shared_ptr<Watch> watch_;
  CachingAllocator& allocator_;
  std::weak_ptr<const void> allocator_life_;
};

std::string to_string(const TrackReport& report);
std::string to_json(const TrackReport& report);

}  // namespace cachalot
