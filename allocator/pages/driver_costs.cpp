#include "pages/driver_costs.h"

#include <algorithm>
#include <cmath>

CACHALOT_BEGIN

namespace {

constexpr double kWaitOverPrice = 4;     // a plan that took more than this times its price has waited
constexpr double kLongestWaitUs = 4000;  // counted of one plan, so that no single one decides
// A price is replaced by one that differs from it by this factor, and by more than the clock's whole microseconds account for.
constexpr double kOther = 1.5;
constexpr double kResolutionUs = 2;
constexpr double kOtherWaitUs = 100;

void use(double& price, double estimate) {
  const double more = std::max(price, estimate);
  const double less = std::min(price, estimate);
  if (more > kOther * less && more - less > kResolutionUs) price = estimate;
}

}  // namespace

void DriverCosts::Estimate::learn(double sample, bool may_rise) {
  if (!is_known) {
    us = sample;
  } else if (sample < us) {
    us = (us + sample) / 2;
  } else if (may_rise) {
    us += (std::min(sample, 2 * us + 1) - us) / 16;
  }
  is_known = true;
}

void DriverCosts::record(const Measured& measured) {
  const auto& [unmaps, creates, maps, accesses, remaps] = measured;
  const auto us = static_cast<double>(unmaps.us + creates.us + maps.us + accesses.us);
  const auto by_estimates = [this, &calls = measured] {
    const Prices now{create_.us, map_.us, set_access_.us, set_access_mapping_.us, unmap_.us};
    return now.of(calls.creates.count, calls.maps.count, calls.accesses.count, calls.unmaps.count);
  };
  const double expected = by_estimates();
  const bool waited = us > kWaitOverPrice * expected && us - expected > kLongWaitUs;
  const auto learn = [&](Estimate& price, const Calls& calls) {
    if (calls.count != 0 && calls.us > 0)
      price.learn(static_cast<double>(calls.us) / static_cast<double>(calls.count), !waited);
  };
  learn(unmap_, unmaps);
  learn(create_, creates);
  learn(map_, maps);
  const std::size_t further = maps.count - accesses.count;
  if (further == 0) {
    learn(set_access_, accesses);
  } else if (accesses.us > 0) {
    const double of_range = set_access_.is_known ? set_access_.us : kOther * set_access_.us;
    const double of_mappings = static_cast<double>(accesses.us) - static_cast<double>(accesses.count) * of_range;
    set_access_mapping_.learn(std::max(0.0, of_mappings / static_cast<double>(further)), !waited);
  }
  learn_wait(us - by_estimates(), remaps);
  reprice();
}

// New memory says nothing about the waits of remappings. It makes them forgotten, so that one is tried again now and then.
void DriverCosts::learn_wait(double excess, bool remaps) {
  remap_wait_ += remaps ? (std::clamp(excess, 0.0, kLongestWaitUs) - remap_wait_) / 8 : -remap_wait_ / 64;
}

void DriverCosts::reprice() {
  use(prices_.create, create_.us);
  use(prices_.map, map_.us);
  use(prices_.set_access, set_access_.us);
  use(prices_.set_access_mapping, set_access_mapping_.us);
  use(prices_.unmap, unmap_.us);
  prices_.set_access = std::max(prices_.set_access, prices_.set_access_mapping);  // a range has a mapping
  if (std::abs(prices_.remap_wait - remap_wait_) > kOtherWaitUs) prices_.remap_wait = remap_wait_;
}

CACHALOT_END
