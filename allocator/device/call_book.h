// What every call to the simulated device does before its own work: it is counted, takes its latency on the virtual
// clock, is logged, and may fail because the fault plan says so. Not thread-safe; the device's mutex guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cachalot/simulated_device.h"

CACHALOT_BEGIN

// The function of the CUDA driver behind a call: "cuMemAlloc", "cuMemMap", …
const char* cuda_name(DeviceCall call);

class CallBook {
 public:
  CallBook(const LatencyModel& latency, bool log_calls);

  enum class Outcome : std::uint8_t { proceed, out_of_memory };

  // Begins a call. Afterwards the clock stands at the call's end: a call takes effect there. Throws CudaError for an
  // injected fault; out_of_memory only for malloc, create, reserve and host_malloc.
  Outcome begin(DeviceCall call, std::uint64_t argument = 0, std::uint64_t bytes = 0) {
    const auto kind = static_cast<std::size_t>(call);
    const std::int64_t latency_ns = call_ns_[kind] + (ns_per_byte_[kind] > 0 ? size_ns(kind, bytes) : 0);
    ++counts_[kind];
    driver_ns_ += latency_ns;
    if (log_calls_) [[unlikely]]
      log_.push_back({call, argument, bytes, true, clock_ns_});
    clock_ns_ += latency_ns;
    return faults_.empty() ? Outcome::proceed : injected(call);
  }

  // The call begun last has worked. Without it the log says that it failed.
  void succeeded() {
    if (log_calls_) [[unlikely]]
      log_.back().failed = false;
  }
  // The same for a call whose argument is known only at the end (the address malloc returns).
  void succeeded(std::uint64_t argument) {
    succeeded();
    if (log_calls_) [[unlikely]]
      log_.back().argument = argument;
  }

  std::int64_t clock_ns() const { return clock_ns_; }
  void advance(std::int64_t ns) { clock_ns_ += ns; }
  void wait_until(std::int64_t ns) {
    if (ns > clock_ns_) clock_ns_ = ns;
  }

  // For time that has passed beside the clock.
  void turn_back_to(std::int64_t ns) { clock_ns_ = ns; }

  std::uint64_t count(DeviceCall call) const { return counts_[static_cast<std::size_t>(call)]; }
  double driver_us() const { return static_cast<double>(driver_ns_) / 1000; }
  std::vector<LoggedCall> take_log();
  void set_faults(std::span<const Fault> faults);
  std::uint64_t faults_injected() const { return faults_injected_; }

 private:
  struct PlannedFault {
    Fault fault;
    std::uint64_t seen = 0;  // calls it could have failed so far
    bool strikes(DeviceCall call);
  };

  std::int64_t size_ns(std::size_t kind, std::uint64_t bytes) const;
  Outcome injected(DeviceCall call);

  std::array<std::int64_t, kDeviceCallCount> call_ns_{};
  std::array<double, kDeviceCallCount> ns_per_byte_{};
  bool log_calls_;
  std::int64_t clock_ns_ = 0;
  std::int64_t driver_ns_ = 0;
  std::array<std::uint64_t, kDeviceCallCount> counts_{};
  std::vector<LoggedCall> log_;
  std::vector<PlannedFault> faults_;
  std::uint64_t faults_injected_ = 0;
};

CACHALOT_END
