#include "growth/handle_exchange.h"

#include <algorithm>

CACHALOT_BEGIN

namespace {

// A program without a driver call for this time repeats its work: then no handle is exchanged.
constexpr std::int64_t kSteadyAfterUs = 1'000'000;

}  // namespace

void HandleExchange::heap_changed(const Held& /*held*/) {
  has_changed_ = true;
  changed_us_ = state_.device->clock_us();
  if (state_.options.background_thread && state_.device->allows_background_threads()) thread_.wake();
}

bool HandleExchange::is_steady(const Held& /*held*/) const {
  return !has_changed_ || state_.device->clock_us() - changed_us_ > kSteadyAfterUs;
}

HandleExchange::Step HandleExchange::tidy() {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  return step(growing);
}

std::optional<std::chrono::microseconds> HandleExchange::step_in_background() {
  switch (tidy()) {
    case Step::exchanged:
      return kPauseAfterExchange;
    case Step::waits:
      return kPauseWhileWorkIsPending;
    case Step::nothing:
      return kPauseWhileNothingIsIdle;
    case Step::steady:
      break;
  }
  return std::nullopt;
}

HandleExchange::Step HandleExchange::step(Growing& growing) {
  if (is_steady(growing)) return Step::steady;
  if (state_.capturing(growing)) return Step::nothing;
  if (candidates_.empty()) find_candidates(growing);
  if (candidates_.empty()) return Step::nothing;
  clocks_.ask_and_record_idle(pages_.page_bytes(), growing);
  while (!candidates_.empty()) {
    const HandleId id = candidates_.back();
    candidates_.pop_back();
    if (!is_replaceable(id, growing)) continue;
    if (!driver_.exchange_handle(id, growing)) has_changed_ = false;  // the device is short of memory: not again soon
    return Step::exchanged;
  }
  return Step::waits;
}

// The largest are the last: they are exchanged first.
void HandleExchange::find_candidates(const Held& held) {
  const PhysicalPages& pages = pages_.pages();
  candidates_ = pages_.idle_handles(state_.pools_of(nullptr, held));
  std::erase_if(candidates_, [&](HandleId id) { return pages.handle(id).pages < 2; });
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [&](HandleId a, HandleId b) { return pages.handle(a).pages < pages.handle(b).pages; });
}

// The id may be that of another handle by now, with which nothing is wrong either.
bool HandleExchange::is_replaceable(HandleId id, const Held& held) {
  const PhysicalPages& pages = pages_.pages();
  return id < pages.handle_ids() && pages.handle(id).pages >= 2 && driver_.is_idle_and_done(id, held);
}

CACHALOT_END
