#include "cachalot/leak_detector.h"

#include <algorithm>
#include <functional>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/locks.h"
#include "base/process.h"
#include "leaks/site_table.h"
#include "leaks/trend.h"

CACHALOT_BEGIN

class LeakDetector::Watch final : public Watcher, public ForkAware {
 public:
  explicit Watch(const LeakDetectorOptions& options) : options_(options) {}

  void on_change(const Change& change, const CallStack& stack) noexcept override {
    const bool is_alloc = change.action == Change::Action::alloc;
    if (!is_alloc && change.action != Change::Action::free_requested) return;
    const Lock lock(mutex_);
    try {
      is_alloc ? table_.allocated(change, stack) : (void)table_.freed(change);
    } catch (const std::bad_alloc&) {  // the host has no memory: a block more that is unknown
    }
  }

  void step() {
    require_own_process(kName);
    const Lock lock(mutex_);
    table_.end_iteration(/*note=*/table_.iterations() >= options_.warm_up, options_.window);
  }

  // The steepest `most`, and how many there are.
  std::vector<Leak> leaks(std::size_t most, std::size_t& count) const {
    require_own_process(kName);
    const Lock lock(mutex_);
    std::vector<Growing> growing;
    table_.for_each([&](const SiteTable::Site& site) {
      if (const auto trend = growth_of(site.notes, options_.min_confidence)) growing.push_back({&site, *trend});
    });
    count = growing.size();
    std::ranges::sort(growing, std::greater<>(), [](const Growing& leak) { return leak.trend.slope; });
    if (growing.size() > most) growing.resize(most);
    return described(growing);
  }

  LeakReport report(std::size_t most) const {
    LeakReport report;
    report.leaks = leaks(most, report.leak_count);
    const Lock lock(mutex_);
    report.iterations = table_.iterations();
    report.live_bytes = table_.live_bytes();
    report.live_blocks = table_.live_blocks();
    report.site_count = table_.site_count();
    report.sites = table_.largest(most);
    return report;
  }

 private:
  static constexpr const char* kName = "the leak detector";
  struct Growing {
    const SiteTable::Site* site;
    Trend trend;
  };

  std::vector<Leak> described(const std::vector<Growing>& growing) const CACHALOT_REQUIRES(mutex_) {
    const std::vector<AllocationSite> sites = table_.sites([&](const SiteTable::Site& site) {
      return std::ranges::find(growing, &site, &Growing::site) != growing.end();
    });
    std::vector<Leak> leaks;
    for (const auto& [site, trend] : growing) {
      const auto found = std::ranges::find(sites, site->stack, &AllocationSite::stack);
      if (found == sites.end()) continue;  // all that it had was freed since the last step
      leaks.push_back({*found, trend.slope, trend.confidence, site->notes.size()});
    }
    return leaks;
  }

  const LeakDetectorOptions options_;
  mutable SleepingMutex mutex_;  // taken under the devices' locks; nothing is called under it
  SiteTable table_ CACHALOT_GUARDED_BY(mutex_);
};

LeakDetector::LeakDetector(CachingAllocator& allocator, const LeakDetectorOptions& options)
    : allocator_(allocator), allocator_life_(allocator.life()) {
  CACHALOT_REQUIRE(options.window >= kFewestSamples, "window is {}; a leak detector needs at least {} iterations",
                   options.window, kFewestSamples);
  CACHALOT_REQUIRE(options.min_confidence >= 0.5 && options.min_confidence < 1,
                   "min_confidence is {}; it must be at least 0.5 and less than 1", options.min_confidence);
  watch_ = std::make_shared<Watch>(options);
  allocator_.add_watcher(watch_);
}

LeakDetector::~LeakDetector() {
  if (!allocator_life_.expired()) allocator_.remove_watcher(watch_.get());
}

void LeakDetector::step() { watch_->step(); }

std::vector<Leak> LeakDetector::leaks(std::size_t most) const {
  std::size_t count = 0;
  return watch_->leaks(most, count);
}

LeakReport LeakDetector::report(std::size_t most) const { return watch_->report(most); }

CACHALOT_END
