#include "tools/simulated_background.h"

#include <chrono>

#include "growth/handle_exchange.h"

namespace cachalot::tools {

std::uint64_t memory_calls(const SimulatedDevice& device) {
  std::uint64_t calls = 0;
  for (const DeviceCall call : {DeviceCall::malloc, DeviceCall::free, DeviceCall::create, DeviceCall::release,
                                DeviceCall::map, DeviceCall::unmap, DeviceCall::set_access})
    calls += device.count(call);
  return calls;
}

void SimulatedBackground::advance_to(std::int64_t ns) {
  while (is_on_ && next_step_ns_ <= ns) {
    device_.advance_to(next_step_ns_);
    step();
  }
  device_.advance_to(ns);
}

void SimulatedBackground::step() {
  const std::uint64_t calls = tools::memory_calls(device_);
  bool has_worked = false;
  const std::int64_t took_ns = device_.do_beside([&] { has_worked = allocator_.tidy(); });
  memory_calls_ += tools::memory_calls(device_) - calls;
  work_ns_ += took_ns;
  step_ends_ns_ = device_.clock_ns() + took_ns;
  const std::chrono::nanoseconds pause =
      has_worked ? HandleExchange::kPauseAfterExchange : HandleExchange::kPauseWhileWorkIsPending;
  next_step_ns_ = step_ends_ns_ + pause.count();
}

void SimulatedBackground::finish() {
  while (is_on_ && allocator_.tidy()) continue;
}

void SimulatedBackground::has_called_driver(std::int64_t began_ns) {
  if (began_ns >= step_ends_ns_) return;
  device_.advance(step_ends_ns_ - began_ns);
  waited_ns_ += step_ends_ns_ - began_ns;
  step_ends_ns_ = began_ns;
}

}  // namespace cachalot::tools
