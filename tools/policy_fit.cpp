#include "tools/policy_fit.h"

#include <utility>

namespace cachalot::tools {

std::string_view name_of(Policy policy) {
  constexpr std::array<std::string_view, kPolicyCount> kNames = {"PyTorch", "expandable segments", "page heap"};
  return kNames[index_of(policy)];
}

AllocatorPolicy settings_of(Policy policy) {
  constexpr std::array kHeaps = {AllocatorPolicy::Heap::segments, AllocatorPolicy::Heap::expandable_segments,
                                 AllocatorPolicy::Heap::pages};
  static_assert(kHeaps.size() == kPolicyCount);
  return {.heap = kHeaps[index_of(policy)]};
}

std::string_view key_of(Policy policy) {
  constexpr std::array<std::string_view, kPolicyCount> kKeys = {"pytorch", "expandable_segments", "page_heap"};
  return kKeys[index_of(policy)];
}

std::string setting_of(Policy policy) { return line_of(settings_of(policy), kEnoughBytes); }

PolicyFit::PolicyFit(Trace trace)
    : trace_(std::make_shared<const Trace>(std::move(trace))), live_bytes_(peak_live_bytes(*trace_)) {}

PolicyOnTrace& PolicyFit::of(Policy policy) {
  return policies_.try_emplace(policy, trace_, live_bytes_, settings_of(policy)).first->second;
}

}  // namespace cachalot::tools
