// The figures of a statistics page, as an allocator has them.
#pragma once

#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/statistics_page.h"

CACHALOT_BEGIN

class PageFigures {
 public:
  explicit PageFigures(const CachingAllocator& allocator);

  // Takes the figures of all devices, each under the locks of AllocatorFigures::device_usage.
  const std::vector<StatisticsPageDevice>& take();
  std::size_t device_count() const { return devices_.size(); }

 private:
  const CachingAllocator& allocator_;
  std::vector<StatisticsPageDevice> devices_;
};

CACHALOT_END
