#include "tools/history/allocations.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

bool is_free(const HistoryEvent& event) {
  return event.action == Action::free_requested || event.action == Action::free_completed;
}

// What lived before the first event, by address.
std::map<Address, Allocation> earlier_allocations(const DeviceHistory& history) {
  std::map<Address, Allocation> earlier;
  std::map<Address, bool> seen;  // in the events
  for (const HistoryEvent& event : history.events) {
    if (event.action != Action::alloc && !is_free(event)) continue;
    if (!seen.try_emplace(event.address, true).second || event.action != Action::free_requested) continue;
    earlier[event.address] = {
        .address = event.address, .bytes = event.bytes, .stream = event.stream, .pool = event.pool};
  }
  for (const HistorySegment& segment : history.segments) {
    for (std::size_t i = segment.first_block; i < segment.first_block + segment.block_count; ++i) {
      const HistoryBlock& block = history.blocks[i];
      if (block.state != HistoryBlock::State::allocated || seen.contains(block.address)) continue;
      earlier[block.address] = {.address = block.address,
                                .bytes = block.requested_bytes,
                                .stack = block.stack,
                                .details = block.details,
                                .stream = segment.stream,
                                .pool = segment.pool};
    }
  }
  return earlier;
}

// Pairs each request with its free.
class Pairing {
 public:
  explicit Pairing(std::size_t events) { allocations_.reserve(events / 2); }

  void add(Allocation allocation) {
    free(allocation.address, allocation.begin);
    live_[allocation.address] = allocations_.size();
    allocations_.push_back(allocation);
  }
  // Nothing happens where nothing lives.
  void free(Address address, std::uint32_t event) {
    const auto live = live_.find(address);
    if (live == live_.end()) return;
    allocations_[live->second].end = event;
    live_.erase(live);
  }
  std::vector<Allocation> take() { return std::move(allocations_); }

 private:
  std::vector<Allocation> allocations_;
  std::map<Address, std::size_t> live_;  // index in allocations_
};

// Requests that failed, each as an allocation that ends before the next event.
void add_failed(const DeviceHistory& history, std::vector<Allocation>& allocations) {
  for (std::size_t i = 0; i < history.events.size(); ++i) {
    const HistoryEvent& event = history.events[i];
    if (event.action != Action::oom || event.bytes == 0) continue;
    const auto number = static_cast<std::uint32_t>(i);
    allocations.push_back(
        {.bytes = event.bytes, .begin = number, .end = number + 1, .stream = event.stream, .pool = event.pool});
  }
}

}  // namespace

std::vector<Allocation> allocations_of(const DeviceHistory& history) {
  Pairing pairing(history.events.size());
  for (const auto& [address, allocation] : earlier_allocations(history)) pairing.add(allocation);
  for (std::size_t i = 0; i < history.events.size(); ++i) {
    const HistoryEvent& event = history.events[i];
    const auto number = static_cast<std::uint32_t>(i);
    if (is_free(event)) pairing.free(event.address, number);
    if (event.action != Action::alloc) continue;
    pairing.add({.address = event.address,
                 .bytes = event.bytes,
                 .begin = number,
                 .stack = event.stack,
                 .details = event.details,
                 .stream = event.stream,
                 .pool = event.pool});
  }
  return pairing.take();
}

std::vector<AllocationStep> steps_of(const std::vector<Allocation>& allocations) {
  std::vector<AllocationStep> steps;
  steps.reserve(2 * allocations.size());
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& allocation = allocations[i];
    steps.push_back({allocation.begin, false, i});
    if (allocation.end != Allocation::kNever) steps.push_back({allocation.end, true, i});
  }
  const auto order = [](const AllocationStep& step) {
    const bool is_earlier = step.event == AllocationStep::kBefore && !step.is_free;
    return std::tuple(!is_earlier, is_earlier ? 0 : step.event, !step.is_free);
  };
  std::ranges::stable_sort(steps, {}, order);
  return steps;
}

Trace trace_of(const History& history, const DeviceHistory& device, FailedRequests failed) {
  const std::string path =
      history.devices.size() == 1 ? history.path : fmt::format("{} device {}", history.path, device.device);
  std::vector<Allocation> allocations = allocations_of(device);
  if (failed == FailedRequests::played) add_failed(device, allocations);
  Trace trace;
  trace.path = path;
  TraceMaker maker;
  std::vector<std::uint32_t> slots(allocations.size());
  for (const AllocationStep& step : steps_of(allocations)) {
    const Allocation& allocation = allocations[step.allocation];
    if (step.is_free) {
      trace.events.push_back(maker.free(slots[step.allocation]));
      continue;
    }
    const std::uint64_t stream = (std::uint64_t{allocation.pool} << 16) + allocation.stream;
    CACHALOT_REQUIRE(maker.can_allocate(), "{}: more than {} allocations are alive at once", path, Trace::kMostSlots);
    CACHALOT_REQUIRE(maker.can_use(stream), "{}: more than {} streams", path, Trace::kMostStreams);
    trace.events.push_back(maker.allocate(allocation.bytes, stream));
    slots[step.allocation] = trace.events.back().slot;
    ++trace.allocation_count;
  }
  CACHALOT_REQUIRE(!trace.events.empty(), "{}: the history has no allocation and no free", path);
  trace.event_count = trace.events.size();
  trace.slots = maker.slots();
  trace.streams = maker.streams();
  return trace;
}

}  // namespace cachalot::tools
