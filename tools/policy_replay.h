// What one program's allocations come to under one policy: on a device, and on how small a device they succeed.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tools/policies.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {

// More memory than a program needs on one device. Not more by orders of magnitude: the page heap reserves as many addresses for
// each pool and stream, and a device has 2^47 of them.
inline constexpr std::size_t kEnoughBytes = std::size_t{1} << 40;

struct PolicyFigures {
  std::size_t peak_held_bytes = 0;  // the most memory of the device at once
  std::size_t ooms = 0;             // allocations that failed
  // Simulated time of the device's calls in microseconds; of expandable segments, of those alone that make memory.
  double driver_us = 0;
  double ns_per_event = 0;  // host time; 0 where it is not measured
};

// How a trace is replayed: on a heap of cachalot with options (options.h), or on the model of PyTorch's expandable segments.
struct ReplayedHeap {
  std::optional<std::string> config;  // nullopt: expandable segments
};

ReplayedHeap heap_of(const AllocatorPolicy& policy);

// Returns the figures but for the host time of one play of the trace. Returns nullopt, at once, where more than
// `most_held_bytes` are held. Thread-safe.
std::optional<PolicyFigures> figures_of(const Trace& trace, const ReplayedHeap& heap, std::size_t device_bytes,
                                        const std::atomic<std::size_t>* most_held_bytes = nullptr);
// Returns whether each allocation of the trace, played once, succeeds on a device of this size. Thread-safe.
bool completes_on(const Trace& trace, const ReplayedHeap& heap, std::size_t device_bytes);

// Returns the host time of an event in nanoseconds, of the fastest of some plays; 0 for expandable segments, which are a
// model. Meaningful only while nothing else runs.
double host_ns_per_event(const Trace& trace, const AllocatorPolicy& policy, std::size_t device_bytes);

// On which devices a trace's program completes with one policy. Each answer is computed once, by a replay until the first
// allocation that fails; below what lives at once, and from what the policy holds without a limit on, no replay is needed.
// Garbage collection has the device as its limit. Not thread-safe.
class PolicyOnTrace {
 public:
  // `held_bytes`: on a device with enough of them, where that is known.
  PolicyOnTrace(std::shared_ptr<const Trace> trace, std::size_t live_bytes, AllocatorPolicy policy,
                std::optional<std::size_t> held_bytes = std::nullopt);

  // Returns the most bytes that the policy holds on a device with enough of them; of one that collects garbage, from how
  // large a device on it does not.
  std::size_t held_bytes();
  bool fits(std::size_t bytes);

 private:
  std::shared_ptr<const Trace> trace_;
  std::size_t live_bytes_;
  AllocatorPolicy policy_;
  std::optional<std::size_t> held_bytes_;
  std::map<std::size_t, bool> answers_;
};

}  // namespace cachalot::tools
