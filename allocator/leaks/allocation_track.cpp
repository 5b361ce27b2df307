#include "cachalot/allocation_track.h"

#include <algorithm>
#include <new>

#include "base/locks.h"
#include "base/process.h"
#include "leaks/site_table.h"

CACHALOT_BEGIN

class AllocationTrack::Watch final : public Watcher, public ForkAware {
 public:
  void on_change(const Change& change, const CallStack& stack) noexcept override {
    const Lock lock(mutex_);
    if (change.action == Change::Action::alloc) count_allocation(change, stack);
    if (change.action == Change::Action::free_requested) count_free(change);
  }

  TrackReport report(std::size_t most) const {
    require_own_process("the track");
    const Lock lock(mutex_);
    TrackReport report = totals_;
    report.left_blocks = table_.live_blocks();
    report.left_bytes = table_.live_bytes();
    report.site_count = table_.site_count();
    report.sites = table_.largest(most);
    return report;
  }

 private:
  void count_allocation(const Change& change, const CallStack& stack) CACHALOT_REQUIRES(mutex_) {
    try {
      table_.allocated(change, stack);
    } catch (const std::bad_alloc&) {  // the host has no memory: its free counts as one of an earlier block
    }
    ++totals_.allocated_blocks;
    totals_.allocated_bytes += change.block_bytes;
    // What there was before and is freed makes room: it may be more than what is allocated.
    if (totals_.allocated_bytes > totals_.freed_bytes) {
      totals_.peak_bytes = std::max(totals_.peak_bytes, totals_.allocated_bytes - totals_.freed_bytes);
    }
  }

  void count_free(const Change& change) CACHALOT_REQUIRES(mutex_) {
    const auto known = table_.freed(change);
    ++totals_.freed_blocks;
    totals_.freed_bytes += change.block_bytes;
    if (known) return;
    ++totals_.freed_earlier_blocks;
    totals_.freed_earlier_bytes += change.block_bytes;
  }

  mutable SleepingMutex mutex_;  // taken under the devices' locks; nothing is called under it
  SiteTable table_ CACHALOT_GUARDED_BY(mutex_);
  TrackReport totals_ CACHALOT_GUARDED_BY(mutex_);
};

AllocationTrack::AllocationTrack(CachingAllocator& allocator)
    : watch_(std::make_shared<Watch>()), allocator_(allocator), allocator_life_(allocator.life()) {
  allocator_.add_watcher(watch_);
}

AllocationTrack::~AllocationTrack() { stop(); }

void AllocationTrack::stop() {
  if (!allocator_life_.expired()) allocator_.remove_watcher(watch_.get());
}

TrackReport AllocationTrack::report(std::size_t most) const { return watch_->report(most); }

CACHALOT_END
