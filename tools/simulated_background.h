// The background thread of an allocator on a simulated device, in a replay that is the same each time.
#pragma once

#include <cstdint>

#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"

namespace cachalot::tools {

// Returns how many calls have taken, given back, mapped or unmapped memory of the device.
std::uint64_t memory_calls(const SimulatedDevice& device);

// The allocator's background thread on a simulated device: its steps are made between the program's events, and take time
// beside the host. A request that makes driver calls waits for the step under way, as it would for the growth mutex.
class SimulatedBackground {
 public:
  // `is_on`: the options ask for the thread; otherwise it makes no step.
  SimulatedBackground(CachingAllocator& allocator, SimulatedDevice& device, bool is_on)
      : allocator_(allocator), device_(device), is_on_(is_on) {}

  bool is_on() const { return is_on_; }

  // Time passes on the host until `ns`, and with it the steps that are due.
  void advance_to(std::int64_t ns);
  // Makes all steps that there are while the program does nothing; no time passes for them.
  void finish();
  // To be called after an event that made driver calls and began at `began_ns`.
  void has_called_driver(std::int64_t began_ns);

  double work_us() const { return static_cast<double>(work_ns_) / 1000; }
  double waited_us() const { return static_cast<double>(waited_ns_) / 1000; }
  std::uint64_t memory_calls() const { return memory_calls_; }

 private:
  void step();

  CachingAllocator& allocator_;
  SimulatedDevice& device_;
  const bool is_on_;
  std::int64_t step_ends_ns_ = 0;
  std::int64_t next_step_ns_ = 0;
  std::int64_t work_ns_ = 0;
  std::int64_t waited_ns_ = 0;
  std::uint64_t memory_calls_ = 0;
};

}  // namespace cachalot::tools
