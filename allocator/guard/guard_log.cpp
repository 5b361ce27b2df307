#include "guard/guard_log.h"

#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <utility>

namespace cachalot {

void GuardLog::set_handler(GuardHandler handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void GuardLog::add(const std::vector<GuardReport>& reports) {
  if (reports.empty()) return;
  GuardHandler handler;
  {
    const std::lock_guard lock(mutex_);
    handler = handler_;
    untaken_.insert(untaken_.end(), reports.begin(), reports.end());
    while (untaken_.size() > kKept) untaken_.pop_front();
  }
  count_ += reports.size();
  for (const GuardReport& report : reports) {
    if (handler) {
      handler(report);
    } else {
      fmt::print(stderr, "cachalot guard: {}\n", to_string(report));
    }
  }
}

std::vector<GuardReport> GuardLog::take() {
  const std::lock_guard lock(mutex_);
  std::vector<GuardReport> taken(std::make_move_iterator(untaken_.begin()), std::make_move_iterator(untaken_.end()));
  untaken_.clear();
  return taken;
}

}  // namespace cachalot
