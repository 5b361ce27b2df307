#include "tools/analysis/oom_figures.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace cachalot::tools {
namespace {

// A figure that no device has: an unknown value, or a negative one, in 64 bits.
constexpr std::uint64_t kImpossible = std::uint64_t{1} << 50;

void drop_impossible_figures(OomMessage& message) {
  for (const OomFigure figure : kOomFigures) {
    if (message.*figure && *(message.*figure) >= kImpossible) (message.*figure).reset();
  }
  std::erase_if(message.other_processes, [](const DeviceFacts::Process& one) { return one.bytes >= kImpossible; });
  if (message.free_bytes && message.total_bytes && *message.free_bytes > *message.total_bytes)
    message.false_free_bytes = std::exchange(message.free_bytes, std::nullopt);
}

void add_reserved(OomMessage& message) {
  const auto& allocated = message.allocated_bytes;
  if (message.framework == "cachalot" && message.unallocated_bytes && allocated) {
    // Its allocated bytes are without those that private pools cache; PyTorch's are with them.
    message.reserved_bytes = *allocated + *message.unallocated_bytes;
    const std::uint64_t in_pools = std::min(message.private_bytes.value_or(0), *message.unallocated_bytes);
    *message.unallocated_bytes -= in_pools;
    *message.allocated_bytes += in_pools;
  } else if (message.reserved_bytes && allocated && !message.unallocated_bytes && message.is_of_torch) {
    message.unallocated_bytes = *message.reserved_bytes - std::min(*message.reserved_bytes, *allocated);
  } else if (!message.reserved_bytes && allocated && message.unallocated_bytes) {
    message.reserved_bytes = *allocated + *message.unallocated_bytes;
  }
}

constexpr std::uint64_t kRounding = std::uint64_t{16} << 20;  // of figures with two places behind the point

// In a container "this process" may have 0 bytes: what it holds is not known there.
void drop_process_without_its_memory(OomMessage& message) {
  const std::uint64_t held = std::max(message.reserved_bytes.value_or(0), message.allocated_bytes.value_or(0));
  if (message.process_bytes && *message.process_bytes + kRounding < held) message.process_bytes.reset();
}

// A context takes more than this: where less is left beside the only process that the message names, that one is this process.
bool find_process_without_room(OomMessage& message) {
  constexpr std::uint64_t kLeastContext = std::uint64_t{64} << 20;
  if (message.other_processes.size() != 1 || !message.total_bytes || !message.free_bytes) return false;
  const std::uint64_t others = message.other_processes.front().bytes + *message.free_bytes;
  if (*message.total_bytes - std::min(*message.total_bytes, others) >= kLeastContext) return false;
  message.own_process = message.other_processes.front();
  message.process_bytes = message.own_process->bytes;
  message.other_processes.clear();
  return true;
}

// In a container the list of processes has this one as well, by its number on the host, and "this process" is not said. It is the
// one that holds a little more than PyTorch does.
void find_own_process(OomMessage& message, bool has_own_figure) {
  constexpr std::uint64_t kMostBeside = std::uint64_t{4} << 30;  // context, NCCL and libraries
  const auto& held = message.reserved_bytes ? message.reserved_bytes : message.allocated_bytes;
  if (has_own_figure || !held || find_process_without_room(message)) return;
  const std::uint64_t reserved = *held;
  auto best = message.other_processes.end();
  for (auto one = message.other_processes.begin(); one != message.other_processes.end(); ++one) {
    const bool may_be = one->bytes + kRounding >= reserved && one->bytes <= reserved + kMostBeside;
    if (may_be && (best == message.other_processes.end() || one->bytes < best->bytes)) best = one;
  }
  if (best == message.other_processes.end()) return;
  message.own_process = *best;
  message.process_bytes = std::max(best->bytes, reserved);
  message.other_processes.erase(best);
}

}  // namespace

void complete(OomMessage& message) {
  const bool has_own_figure = message.process_bytes.has_value();
  drop_impossible_figures(message);
  add_reserved(message);
  drop_process_without_its_memory(message);
  find_own_process(message, has_own_figure);
  const bool is_negative = message.requested_bytes && *message.requested_bytes >= kImpossible;
  const bool is_whole = message.allocated_bytes && message.total_bytes &&
                        (message.reserved_bytes || message.framework == kAsyncAllocator);
  message.is_cut = message.is_of_torch && message.words.empty() && !is_negative && !is_whole;
}

std::optional<std::uint64_t> own_bytes(const OomMessage& message) {
  if (message.process_bytes) return message.process_bytes;
  if (message.reserved_bytes) return message.reserved_bytes;
  return message.is_of_torch ? message.allocated_bytes : std::nullopt;
}

std::uint64_t live_bytes(const OomMessage& message) {
  const std::uint64_t allocated = message.allocated_bytes.value_or(0);
  return allocated - std::min(allocated, message.private_bytes.value_or(0));
}

std::uint64_t other_bytes(const OomMessage& message) {
  std::uint64_t bytes = 0;
  for (const DeviceFacts::Process& process : message.other_processes) bytes += process.bytes;
  return bytes;
}

std::optional<std::uint64_t> unnamed_bytes(const OomMessage& message) {
  const std::optional<std::uint64_t> own = own_bytes(message);
  if (!own || !message.total_bytes || !message.free_bytes) return std::nullopt;
  constexpr std::uint64_t kRoundingOfSums = std::uint64_t{1} << 20;  // of the figures, which are sums of rounded ones
  const std::uint64_t named = *own + other_bytes(message) + *message.free_bytes;
  const std::uint64_t unnamed = *message.total_bytes - std::min(*message.total_bytes, named);
  return unnamed < kRoundingOfSums ? 0 : unnamed;
}

}  // namespace cachalot::tools
