#include "device/pin_timer.h"

#include <algorithm>
#include <bit>

CACHALOT_BEGIN

namespace {

void add_call(CallTimes& calls, std::int64_t us) {
  calls.min_us = calls.min_us == 0 ? us : std::min(calls.min_us, us);
  calls.max_us = std::max(calls.max_us, us);
  calls.total_us += us;
  ++calls.count;
}

}  // namespace

void PinTimer::pinned(std::size_t bytes, std::int64_t us) {
  const auto size = static_cast<std::size_t>(std::bit_width(bytes - 1));
  const Lock lock(mutex_);
  add_call(times_.pin, us);
  ++times_.pins_by_size[std::min(size, PinTimes::kSizes - 1)];
}

void PinTimer::unpinned(std::int64_t us) {
  const Lock lock(mutex_);
  add_call(times_.unpin, us);
}

PinTimes PinTimer::times() const {
  const Lock lock(mutex_);
  return times_;
}

void PinTimer::reset_accumulated() {
  const Lock lock(mutex_);
  times_.pins_by_size.fill(0);
  for (CallTimes* const calls : {&times_.pin, &times_.unpin}) calls->count = calls->total_us = 0;
}

void PinTimer::reset_peak() {
  const Lock lock(mutex_);
  for (CallTimes* const calls : {&times_.pin, &times_.unpin}) calls->min_us = calls->max_us = 0;
}

CACHALOT_END
