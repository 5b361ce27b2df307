// Options that a user sets in vain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cachalot/options.h"

CACHALOT_BEGIN

// An AcceptedOption is an option of PyTorch's that the parser accepts although it has no effect here: its value is checked,
// and its user is warned.
struct AcceptedOption {
  // The type of its value.
  enum class Type : std::uint8_t {
    flag,     // True or False
    threads,  // a power of two up to 128
    mib,      // a number of MiB above 0
  };

  std::string_view name;
  std::string_view alias;  // PyTorch's name for it in ROCm builds
  Type type;
  std::string_view why;  // it has no effect; empty: no warning, since what it asks for is so always

  bool is_named(std::string_view word) const { return word == name || (!alias.empty() && word == alias); }
  std::size_t default_value() const { return type == Type::threads ? 1 : 0; }
  // Returns its value in `options`.
  std::size_t value(const Options& options) const {
    const auto found = std::ranges::find(options.without_effect, name, &std::pair<std::string, std::size_t>::first);
    return found == options.without_effect.end() ? default_value() : found->second;
  }
};

inline constexpr std::string_view kPinnedMemoryIsOurs =
    "PinnedHostAllocator does not use it; for PyTorch's pinned memory, set it in PYTORCH_CUDA_ALLOC_CONF";

inline constexpr AcceptedOption kAcceptedWithoutEffect[] = {
    {"release_lock_on_cudamalloc", "release_lock_on_hipmalloc", AcceptedOption::Type::flag,
     ""},  // no lock is held during driver calls
    {"graph_capture_record_stream_reuse", "", AcceptedOption::Type::flag,
     "memory that a capture uses on several streams is reused after the capture only"},
    {"pinned_use_background_threads", "", AcceptedOption::Type::flag, kPinnedMemoryIsOurs},
    {"pinned_use_cuda_host_register", "pinned_use_hip_host_register", AcceptedOption::Type::flag, kPinnedMemoryIsOurs},
    {"pinned_num_register_threads", "", AcceptedOption::Type::threads, kPinnedMemoryIsOurs},
    {"pinned_reserve_segment_size_mb", "", AcceptedOption::Type::mib, kPinnedMemoryIsOurs},
};

// Returns the one of that name or alias. Requires that there is one.
inline const AcceptedOption& accepted_without_effect(std::string_view name) {
  return *std::ranges::find_if(kAcceptedWithoutEffect, [&](const auto& option) { return option.is_named(name); });
}

// Prints options_without_effect on standard error, each sentence once per process, without those that hold for `before`, too.
// Thread-safe.
void warn_of_options_without_effect(const Options& options, const Options& before = {});

CACHALOT_END
