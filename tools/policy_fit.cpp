#include "tools/policy_fit.h"

#include <span>

#include "base/bytes.h"
#include "tools/expandable_segments.h"
#include "tools/replay.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kEnough = std::size_t{1} << 46;  // of any program

ReplayOptions options_of(Policy policy) {
  ReplayOptions options;
  options.config = policy == Policy::page_heap ? "heap:pages" : "heap:segments";
  options.device_bytes = kEnough;
  return options;
}

std::size_t held_in_replay(const Trace& trace, Policy policy) {
  ReplayWorld world(trace, options_of(policy));
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t first) {
    for (std::size_t i = 0; i < events.size(); ++i) world.play_with_work(events[i], first + i);
    return true;
  });
  return world.device().peak_used_bytes();
}

bool is_enough(const Trace& trace, Policy policy, std::size_t bytes) {
  if (policy == Policy::expandable_segments)
    return play_on_expandable_segments(trace, bytes, /*until_failure=*/true).ooms == 0;
  constexpr std::size_t kSmallestDevice = 2 * kMiB;
  return bytes >= kSmallestDevice && completes(trace, options_of(policy), bytes);
}

}  // namespace

std::string_view name_of(Policy policy) {
  constexpr std::array<std::string_view, kPolicyCount> kNames = {"PyTorch", "expandable segments", "page heap"};
  return kNames[index_of(policy)];
}

std::string_view key_of(Policy policy) {
  constexpr std::array<std::string_view, kPolicyCount> kKeys = {"pytorch", "expandable_segments", "page_heap"};
  return kKeys[index_of(policy)];
}

std::string_view setting_of(Policy policy) {
  constexpr std::array<std::string_view, kPolicyCount> kSettings = {
      "", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "python -m cachalot run --config heap:pages"};
  return kSettings[index_of(policy)];
}

PolicyFit::PolicyFit(Trace trace) : trace_(std::move(trace)), live_bytes_(peak_live_bytes(trace_)) {}

std::size_t PolicyFit::held_bytes(Policy policy) {
  const auto [found, is_new] = held_bytes_.try_emplace(policy, 0);
  if (is_new) {
    found->second = policy == Policy::expandable_segments
                        ? play_on_expandable_segments(trace_, kEnough).peak_reserved_bytes
                        : held_in_replay(trace_, policy);
  }
  return found->second;
}

bool PolicyFit::fits(Policy policy, std::size_t bytes) {
  if (bytes < live_bytes_) return false;
  if (bytes >= held_bytes(policy)) return true;
  const auto [found, is_new] = answers_.try_emplace({policy, bytes}, false);
  if (is_new) found->second = is_enough(trace_, policy, bytes);
  return found->second;
}

}  // namespace cachalot::tools
