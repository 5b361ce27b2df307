// How much memory a program needs that made the allocations of a trace: by allocator policy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tools/policies.h"
#include "tools/policy_replay.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {

enum class Policy : std::uint8_t { pytorch, expandable_segments, page_heap };

inline constexpr std::array kPolicies = {Policy::pytorch, Policy::expandable_segments, Policy::page_heap};
inline constexpr std::size_t kPolicyCount = kPolicies.size();

// Returns its place in an array with an element for each policy.
constexpr std::size_t index_of(Policy policy) { return static_cast<std::size_t>(policy); }
// Returns "PyTorch", "expandable segments" or "page heap".
std::string_view name_of(Policy policy);
// Returns its settings.
AllocatorPolicy settings_of(Policy policy);
// Returns the key of JSON: "pytorch", "expandable_segments" or "page_heap".
std::string_view key_of(Policy policy);
// Returns what a user sets or runs to have the policy; "" for PyTorch's, which is the default.
std::string setting_of(Policy policy);

// Whether a trace's program fits into so much memory, with each policy. Not thread-safe.
class PolicyFit {
 public:
  explicit PolicyFit(Trace trace);

  // Returns the most bytes that live at once: whatever the policy, less is not enough.
  std::size_t live_bytes() const { return live_bytes_; }
  // Returns the most bytes that the policy holds on a device with enough of them.
  std::size_t held_bytes(Policy policy) { return of(policy).held_bytes(); }
  bool fits(Policy policy, std::size_t bytes) { return of(policy).fits(bytes); }

 private:
  PolicyOnTrace& of(Policy policy);

  std::shared_ptr<const Trace> trace_;
  std::size_t live_bytes_;
  std::map<Policy, PolicyOnTrace> policies_;
};

}  // namespace cachalot::tools
