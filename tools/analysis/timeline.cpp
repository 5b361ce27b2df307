#include "tools/analysis/timeline.h"

#include <algorithm>
#include <map>

#include "policy/torch_policy.h"
#include "tools/history/recorded_figures.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

// A hostile file can make any sum wrong: none is below zero.
std::uint64_t changed(std::uint64_t bytes, std::int64_t by) {
  const auto sum = static_cast<std::int64_t>(bytes) + by;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, sum));
}

void subtract(std::uint64_t& from, std::uint64_t bytes) { from -= std::min(from, bytes); }

std::uint64_t rounded(std::uint64_t bytes) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;
  return round_to_block(std::clamp<std::uint64_t>(bytes, 1, kLargest));
}

}  // namespace

std::vector<std::uint64_t> block_bytes_of(const DeviceHistory& device, std::span<const Allocation> allocations) {
  std::map<Address, std::uint64_t> at_the_end;
  for (const HistoryBlock& block : device.blocks) {
    if (block.state == HistoryBlock::State::allocated) at_the_end.emplace(block.address, block.bytes);
  }
  std::vector<std::uint64_t> bytes;
  bytes.reserve(allocations.size());
  for (const Allocation& one : allocations) {
    const auto block = one.end == Allocation::kNever ? at_the_end.find(one.address) : at_the_end.end();
    bytes.push_back(block == at_the_end.end() ? rounded(one.bytes) : block->second);
  }
  return bytes;
}

HeldCursor::HeldCursor(const DeviceHistory& device, std::span<const Allocation> allocations,
                       std::span<const std::uint64_t> blocks)
    : device_(device), allocations_(allocations), blocks_(blocks) {
  for (std::uint32_t i = 0; i < allocations.size(); ++i) {
    if (allocations[i].end != Allocation::kNever) by_end_.push_back(i);
  }
  std::ranges::stable_sort(by_end_, {}, [&](std::uint32_t i) { return allocations[i].end; });
  held_.reserved = static_cast<std::uint64_t>(std::max<std::int64_t>(0, reserved_at_begin(device)));
  while (next_begin_ < allocations.size() && allocations[next_begin_].begin == Allocation::kBefore)
    begin(static_cast<std::uint32_t>(next_begin_++));
  held_.active = held_.allocated;
}

void HeldCursor::advance() {
  begun_.clear();
  ended_.clear();
  const HistoryEvent& event = device_.events[event_];
  const auto number = static_cast<std::uint32_t>(event_++);
  while (next_end_ < by_end_.size() && allocations_[by_end_[next_end_]].end == number) end(by_end_[next_end_++]);
  while (next_begin_ < allocations_.size() && allocations_[next_begin_].begin == number)
    begin(static_cast<std::uint32_t>(next_begin_++));
  if (event.action == Action::free_completed) pending_ -= static_cast<std::int64_t>(rounded(event.bytes));
  pending_ = std::max<std::int64_t>(0, pending_);
  held_.reserved = changed(held_.reserved, reserved_change(event));
  held_.active = changed(held_.allocated, pending_);
}

void HeldCursor::begin(std::uint32_t allocation) {
  begun_.push_back(allocation);
  held_.requested += allocations_[allocation].bytes;
  held_.allocated += blocks_[allocation];
}

void HeldCursor::end(std::uint32_t allocation) {
  ended_.push_back(allocation);
  subtract(held_.requested, allocations_[allocation].bytes);
  subtract(held_.allocated, blocks_[allocation]);
  if (device_.events[allocations_[allocation].end].action == Action::free_requested)
    pending_ += static_cast<std::int64_t>(rounded(allocations_[allocation].bytes));
}

}  // namespace cachalot::tools
