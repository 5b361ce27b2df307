#include "device/call_book.h"

#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

CallBook::CallBook(const LatencyModel& latency, bool log_calls) : log_calls_(log_calls) {
  for (std::size_t i = 0; i < kDeviceCallCount; ++i) {
    call_ns_[i] = std::llround(latency.call_us[i] * 1000);
    ns_per_byte_[i] = latency.call_us_per_mib[i] * 1000 / static_cast<double>(kMiB);
  }
}

std::int64_t CallBook::size_ns(std::size_t kind, std::uint64_t bytes) const {
  constexpr double kLongestNs = 1e12;  // an absurd size, about to be refused, must not overflow the clock
  return static_cast<std::int64_t>(std::fmin(ns_per_byte_[kind] * static_cast<double>(bytes) + 0.5, kLongestNs));
}

std::vector<LoggedCall> CallBook::take_log() { return std::exchange(log_, {}); }

void CallBook::set_faults(std::span<const Fault> faults) {
  faults_.clear();
  for (const Fault& fault : faults) faults_.push_back({fault});
}

bool CallBook::PlannedFault::strikes(DeviceCall call) {
  if (fault.call && *fault.call != call) return false;
  ++seen;
  return fault.repeat ? seen >= fault.nth : seen == fault.nth;
}

CallBook::Outcome CallBook::injected(DeviceCall call) {
  const Fault* struck = nullptr;
  for (PlannedFault& planned : faults_) {
    if (planned.strikes(call) && !struck) struck = &planned.fault;
  }
  if (!struck) return Outcome::proceed;
  ++faults_injected_;
  const bool may_lack_memory = call == DeviceCall::malloc || call == DeviceCall::create ||
                               call == DeviceCall::reserve || call == DeviceCall::host_malloc;
  if (struck->out_of_memory && may_lack_memory) return Outcome::out_of_memory;
  const int code = struck->out_of_memory ? static_cast<int>(CudaCode::memory_allocation) : struck->code;
  throw CudaError(cuda_name(call), code, cuda_code_name(code));
}

CACHALOT_END
