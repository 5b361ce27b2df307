#include "tools/policy_replay.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/expandable_segments.h"
#include "tools/replay.h"

namespace cachalot::tools {
namespace {

using Heap = AllocatorPolicy::Heap;

constexpr std::size_t kSmallestDevice = 2 * kMiB;

ReplayOptions options_of(const std::string& config, std::size_t device_bytes) {
  ReplayOptions options;
  options.config = config;
  options.device_bytes = device_bytes;
  return options;
}

// Plays the trace once. False: more was held than is wanted, and the play has ended there.
bool play(const Trace& trace, ReplayWorld& world, PolicyFigures& figures, const std::atomic<std::size_t>* most) {
  bool is_wanted = true;
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t first) {
    for (std::size_t i = 0; i < events.size() && is_wanted; ++i) {
      if (!world.play_with_work(events[i], first + i)) ++figures.ooms;
      is_wanted = most == nullptr || world.device().peak_used_bytes() <= most->load(std::memory_order_relaxed);
    }
    return is_wanted;
  });
  return is_wanted;
}

}  // namespace

ReplayedHeap heap_of(const AllocatorPolicy& policy) {
  if (policy.heap == Heap::expandable_segments) return {};
  return {config_of(policy)};
}

std::optional<PolicyFigures> figures_of(const Trace& trace, const ReplayedHeap& heap, std::size_t device_bytes,
                                        const std::atomic<std::size_t>* most_held_bytes) {
  PolicyFigures figures;
  if (!heap.config) {
    const ExpandableFigures expandable = play_on_expandable_segments(trace, device_bytes);
    figures.peak_held_bytes = expandable.peak_reserved_bytes;
    figures.ooms = expandable.ooms;
    figures.driver_us = driver_us_of_growth(expandable);
    return figures;
  }
  ReplayWorld world(trace, options_of(*heap.config, device_bytes));
  if (!play(trace, world, figures, most_held_bytes)) return std::nullopt;
  world.free_all();
  figures.peak_held_bytes = world.device().peak_used_bytes();
  figures.driver_us = world.device().driver_us();
  return figures;
}

bool completes_on(const Trace& trace, const ReplayedHeap& heap, std::size_t device_bytes) {
  if (!heap.config) return play_on_expandable_segments(trace, device_bytes, /*until_failure=*/true).ooms == 0;
  return device_bytes >= kSmallestDevice && completes(trace, options_of(*heap.config, device_bytes), device_bytes);
}

double host_ns_per_event(const Trace& trace, const AllocatorPolicy& policy, std::size_t device_bytes) {
  if (policy.heap == Heap::expandable_segments || trace.event_count == 0) return 0;
  constexpr std::size_t kWantedEvents = 1'000'000;  // some tenth of a second
  constexpr std::size_t kMostPasses = 20;
  const auto passes = static_cast<int>(std::clamp<std::size_t>(kWantedEvents / trace.event_count, 1, kMostPasses));
  const std::int64_t ns = time_best_pass(trace, options_of(config_of(policy), device_bytes), passes);
  return static_cast<double>(ns) / static_cast<double>(trace.event_count);
}

PolicyOnTrace::PolicyOnTrace(std::shared_ptr<const Trace> trace, std::size_t live_bytes, AllocatorPolicy policy,
                             std::optional<std::size_t> held_bytes)
    : trace_(std::move(trace)), live_bytes_(live_bytes), policy_(policy), held_bytes_(held_bytes) {}

// A policy that collects garbage never does where what it holds without is below that part of the limit.
std::size_t PolicyOnTrace::held_bytes() {
  if (held_bytes_) return *held_bytes_;
  AllocatorPolicy policy = policy_;
  policy.limit_bytes = 0;
  const double threshold = std::exchange(policy.garbage_collection_threshold, 0);
  const PolicyFigures figures = *figures_of(*trace_, heap_of(policy), kEnoughBytes);
  CACHALOT_REQUIRE(figures.ooms == 0, "{}: of {} of memory, {} allocations had none", trace_->path,
                   format_bytes(kEnoughBytes), figures.ooms);
  const std::size_t held = figures.peak_held_bytes;
  held_bytes_ = threshold == 0 ? held : static_cast<std::size_t>(static_cast<double>(held) / threshold) + 1;
  return *held_bytes_;
}

bool PolicyOnTrace::fits(std::size_t bytes) {
  if (bytes < live_bytes_) return false;
  if (bytes >= held_bytes()) return true;
  const auto [found, is_new] = answers_.try_emplace(bytes, false);
  if (!is_new) return found->second;
  AllocatorPolicy policy = policy_;
  if (policy.garbage_collection_threshold != 0) policy.limit_bytes = bytes;
  return found->second = completes_on(*trace_, heap_of(policy), bytes);
}

}  // namespace cachalot::tools
