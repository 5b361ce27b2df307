// Growths are the strategies of one device's allocator: that of its default pools, as the option `heap` says, and that
// of pools with a segment provider.
#pragma once

#include <memory>
#include <vector>

#include "growth/async_growth.h"
#include "growth/page_growth.h"
#include "growth/segment_growth.h"

CACHALOT_BEGIN

class Growths {
 public:
  // Uses segments, with a message on stderr, if the device lacks what the option needs.
  Growths(HeapState& state, const PageGrowth::Parts& parts, const Options& options);
  Growths(const Growths&) = delete;
  Growths& operator=(const Growths&) = delete;

  Growth& usual() const { return *usual_; }
  Growth& of_providers() const { return *segments_; }
  // Returns null unless the default pools use pages.
  PageGrowth* pages() const { return pages_.get(); }
  std::vector<const Growth*> all() const;
  void give_back_everything() noexcept;

 private:
  std::unique_ptr<SegmentGrowth> segments_;
  std::unique_ptr<AsyncGrowth> async_;
  std::unique_ptr<PageGrowth> pages_;
  Growth* usual_;
};

CACHALOT_END
