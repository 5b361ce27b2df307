#include "tools/simulated_background.h"

namespace cachalot::tools {

namespace {

// As the thread itself does: after a step, and if there was nothing to do.
constexpr std::int64_t kPauseNs = 100'000;
constexpr std::int64_t kPollNs = 2'000'000;

}  // namespace

std::uint64_t memory_calls(const SimulatedDevice& device) {
  std::uint64_t calls = 0;
  for (const DeviceCall call : {DeviceCall::malloc, DeviceCall::free, DeviceCall::create, DeviceCall::release,
                                DeviceCall::map, DeviceCall::unmap, DeviceCall::set_access})
    calls += device.count(call);
  return calls;
}

void SimulatedBackground::advance_to(std::int64_t ns) {
  while (next_step_ns_ <= ns) {
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
  next_step_ns_ = step_ends_ns_ + (has_worked ? kPauseNs : kPollNs);
}

void SimulatedBackground::has_called_driver(std::int64_t began_ns) {
  if (began_ns >= step_ends_ns_) return;
  device_.advance(step_ends_ns_ - began_ns);
  waited_ns_ += step_ends_ns_ - began_ns;
  step_ends_ns_ = began_ns;
}

}  // namespace cachalot::tools
