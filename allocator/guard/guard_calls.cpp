#include "guard/guard_calls.h"

#include <unistd.h>

#include <utility>

CACHALOT_BEGIN

namespace {

std::uint64_t this_thread() {
  static thread_local const auto number = static_cast<std::uint64_t>(::gettid());
  return number;
}

}  // namespace

CallStack GuardCalls::stack_now() const { return takes_stacks_ ? CallStack::capture() : CallStack(); }

GuardCall GuardCalls::next(CallStack stack) { return {++last_, this_thread(), device_.clock_us(), std::move(stack)}; }

GuardCall GuardCalls::mistake() const { return {last_, this_thread(), device_.clock_us(), stack_now()}; }

CACHALOT_END
