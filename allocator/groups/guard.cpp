#include "cachalot/allocator_guard.h"

#include <utility>

#include "base/check.h"
#include "groups/allocator_state.h"

CACHALOT_BEGIN

void AllocatorGuard::set_guard_handler(GuardHandler handler) {
  state_.require_own_process();
  if (state_.is_guarded()) state_.guard_log().set_handler(std::move(handler));
}

std::uint64_t AllocatorGuard::guard_reports() const {
  state_.require_own_process();
  return state_.is_guarded() ? state_.guard_log().count() : 0;
}

std::vector<GuardReport> AllocatorGuard::check_guard() {
  state_.require_own_process();
  CACHALOT_REQUIRE(state_.is_guarded(),
                   "check_guard: the guard is off; guard:True or debug:True turns it on when the allocator is made");
  state_.guard_log().tell_after([this] {
    for (const auto& guard : state_.guards()) guard->check();
  });
  return state_.guard_log().take();
}

std::size_t AllocatorGuard::guard_quarantine_bytes(int device) const {
  state_.at(device);
  return state_.is_guarded() ? state_.guards()[static_cast<std::size_t>(device)]->quarantine_bytes() : 0;
}

CACHALOT_END
