// PyTorch's message of an out-of-memory error, with what stands around it in a log: a traceback, say.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/history/history.h"

namespace cachalot::tools {

// What is known of a device beyond PyTorch's memory, by its number.

// Returns the facts of the device; nullptr where there are none.
inline const DeviceFacts* find_facts(const History& history, int device) {
  const auto found = std::ranges::find(history.facts, device, &DeviceFacts::device);
  return found == history.facts.end() ? nullptr : &*found;
}

// Returns the facts of the device, which may be new.
inline DeviceFacts& facts_of(History& history, int device) {
  const auto found = std::ranges::find(history.facts, device, &DeviceFacts::device);
  if (found != history.facts.end()) return *found;
  DeviceFacts& facts = history.facts.emplace_back();
  facts.device = device;
  return facts;
}

// Sizes in bytes, as exact as the message has them: two places behind the point.
struct OomMessage {
  std::optional<std::uint64_t> requested_bytes;
  int device = 0;
  std::optional<std::uint64_t> total_bytes;        // of the device
  std::optional<std::uint64_t> free_bytes;         // of the device
  std::optional<std::uint64_t> process_bytes;      // of this process, with what is not PyTorch's
  std::optional<std::uint64_t> allowed_bytes;      // by set_per_process_memory_fraction
  std::optional<std::uint64_t> allocated_bytes;    // by PyTorch, with what private pools cache
  std::optional<std::uint64_t> private_bytes;      // cached in private pools
  std::optional<std::uint64_t> unallocated_bytes;  // reserved and not allocated, outside of private pools
  std::vector<DeviceFacts::Process> other_processes;
  bool is_of_pinned_memory = false;  // pinned host memory ran out
  bool is_of_nccl = false;           // NCCL's own request failed
};

// Reads the last such message of the text. Throws InvalidArgument, which names `path`, where there is none.
OomMessage read_oom_message(std::string_view text, std::string_view path);

// Adds what the message tells of its device to the facts of the history, where they do not have it.
void add_facts(const OomMessage& message, History& history);

}  // namespace cachalot::tools
