#include "tools/history/allocations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "tools/history/address_map.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

bool is_free(const HistoryEvent& event) {
  return event.action == Action::free_requested || event.action == Action::free_completed;
}

Allocation allocation_of(const HistoryEvent& event, std::uint32_t begin) {
  return {.address = event.address,
          .bytes = event.bytes,
          .begin = begin,
          .stack = event.stack,
          .details = event.details,
          .stream = event.stream,
          .pool = event.pool};
}

// Returns the allocations from before the first event, by address: those freed or annotated before they are allocated,
// and those that live at the end without an event.
std::vector<Allocation> earlier_allocations(const DeviceHistory& history) {
  std::vector<Allocation> earlier;
  AddressMap seen;  // in the events
  for (const HistoryEvent& event : history.events) {
    const bool is_annotation = event.action == Action::annotate;
    if (event.action != Action::alloc && !is_free(event) && !is_annotation) continue;
    if (seen.find(event.address) != AddressMap::kNone) continue;
    seen.set(event.address, 0);
    if (event.action != Action::free_requested && !is_annotation) continue;
    earlier.push_back(allocation_of(event, Allocation::kBefore));
    if (!is_annotation) earlier.back().stack = earlier.back().details = 0;  // those of the free
  }
  for (const HistorySegment& segment : history.segments) {
    for (std::size_t i = segment.first_block; i < segment.first_block + segment.block_count; ++i) {
      const HistoryBlock& block = history.blocks[i];
      if (block.state != HistoryBlock::State::allocated || seen.find(block.address) != AddressMap::kNone) continue;
      seen.set(block.address, 0);
      earlier.push_back({.address = block.address,
                         .bytes = block.requested_bytes,
                         .stack = block.stack,
                         .details = block.details,
                         .stream = segment.stream,
                         .pool = segment.pool});
    }
  }
  std::ranges::sort(earlier, {}, &Allocation::address);
  return earlier;
}

// Pairs each request with its free.
class Pairing {
 public:
  explicit Pairing(std::vector<Allocation> earlier) : allocations_(std::move(earlier)) {
    for (std::size_t i = 0; i < allocations_.size(); ++i) {
      live_.set(allocations_[i].address, static_cast<std::uint32_t>(i));
    }
  }

  void reserve(std::size_t more) { allocations_.reserve(allocations_.size() + more); }
  void add(const HistoryEvent& event, std::uint32_t number) {
    free(event.address, number);
    live_.set(event.address, static_cast<std::uint32_t>(allocations_.size()));
    allocations_.push_back(allocation_of(event, number));
  }
  // Nothing happens where nothing lives.
  void free(Address address, std::uint32_t event) {
    const std::uint32_t live = live_.erase(address);
    if (live != AddressMap::kNone) allocations_[live].end = event;
  }
  void annotate(const HistoryEvent& event) {
    const std::uint32_t live = live_.find(event.address);
    if (live != AddressMap::kNone) allocations_[live].details = event.details;
  }
  std::vector<Allocation> take() { return std::move(allocations_); }

 private:
  std::vector<Allocation> allocations_;
  AddressMap live_;  // index in allocations_
};

// Makes a trace's events of a history's.
class TraceOfHistory {
 public:
  explicit TraceOfHistory(Trace& trace) : trace_(trace) {}

  void allocate(Address address, std::uint64_t bytes, std::uint16_t stream, std::uint16_t pool) {
    free(address);
    live_.set(address, begin(bytes, stream, pool));
  }
  void free(Address address) {
    const std::uint32_t slot = live_.erase(address);
    if (slot != AddressMap::kNone) trace_.events.push_back(maker_.free(slot));
  }
  void empty_cache() { trace_.events.push_back({.bytes = 0, .slot = TraceEvent::kCache, .stream = TraceEvent::kFree}); }
  // A request that failed: freed at once.
  void request(const HistoryEvent& event) {
    trace_.events.push_back(maker_.free(begin(event.bytes, event.stream, event.pool)));
  }
  void finish() {
    trace_.event_count = trace_.events.size();
    trace_.slots = maker_.slots();
    trace_.streams = maker_.streams();
  }

 private:
  // Returns the slot.
  std::uint32_t begin(std::uint64_t bytes, std::uint16_t stream, std::uint16_t pool) {
    const std::uint64_t number = (std::uint64_t{pool} << 16) + stream;
    CACHALOT_REQUIRE(maker_.can_allocate(), "{}: more than {} allocations are alive at once", trace_.path,
                     Trace::kMostSlots);
    CACHALOT_REQUIRE(maker_.can_use(number), "{}: more than {} streams", trace_.path, Trace::kMostStreams);
    trace_.events.push_back(maker_.allocate(bytes, number));
    ++trace_.allocation_count;
    return trace_.events.back().slot;
  }

  Trace& trace_;
  TraceMaker maker_;
  AddressMap live_;  // slots
};

bool gives_segment_back(const HistoryEvent& event) {
  return event.action == Action::segment_free || event.action == Action::segment_unmap;
}

enum class Release : std::uint8_t { none, by_program, for_request };

// Returns which row of events that give memory back ends with the event. The program gives its cached memory back, or PyTorch
// does for a request that fails otherwise: a segment for it, or the failure, comes next, from the same call.
Release release_ending_at(std::span<const HistoryEvent> events, std::size_t number) {
  if (!gives_segment_back(events[number])) return Release::none;
  if (number + 1 == events.size()) return Release::by_program;
  const HistoryEvent& next = events[number + 1];
  if (gives_segment_back(next)) return Release::none;
  const bool asks = next.action == Action::segment_alloc || next.action == Action::segment_map ||
                    next.action == Action::alloc;  // of a request that failed, and is played as one that did not
  const bool is_for_request = next.action == Action::oom || (asks && next.stack == events[number].stack);
  return is_for_request ? Release::for_request : Release::by_program;
}

// Returns whether PyTorch's own sizes of segments, and its own moments to give memory back, follow from its requests
// alone.
bool has_usual_policy(std::string_view settings) {
  constexpr std::array<std::string_view, 4> kOthers = {"max_split_size", "roundup_power2", "large_segment", "garbage"};
  return std::ranges::all_of(kOthers, [&](auto key) { return settings.find(key) == std::string_view::npos; });
}

}  // namespace

std::vector<Allocation> allocations_of(const DeviceHistory& history) {
  CACHALOT_REQUIRE(history.events.size() < Allocation::kNever, "a history of more than {} events", Allocation::kNever);
  Pairing pairing(earlier_allocations(history));
  pairing.reserve(static_cast<std::size_t>(std::ranges::count(history.events, Action::alloc, &HistoryEvent::action)));
  for (std::size_t i = 0; i < history.events.size(); ++i) {
    const HistoryEvent& event = history.events[i];
    const auto number = static_cast<std::uint32_t>(i);
    if (is_free(event)) pairing.free(event.address, number);
    if (event.action == Action::alloc) pairing.add(event, number);
    if (event.action == Action::annotate) pairing.annotate(event);
  }
  return pairing.take();
}

// An event begins one allocation at most, and ends one at most: nothing needs to be sorted.
std::vector<AllocationStep> steps_of(const std::vector<Allocation>& allocations) {
  constexpr std::uint32_t kNone = AddressMap::kNone;
  std::size_t events = 0;
  for (const Allocation& allocation : allocations) {
    if (allocation.begin != Allocation::kBefore) events = std::max<std::size_t>(events, allocation.begin + 1ul);
    if (allocation.end != Allocation::kNever) events = std::max<std::size_t>(events, allocation.end + 1ul);
  }
  std::vector<std::uint32_t> begun(events, kNone);
  std::vector<std::uint32_t> ended(events, kNone);
  std::vector<AllocationStep> steps;
  steps.reserve(2 * allocations.size());
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& allocation = allocations[i];
    if (allocation.begin == Allocation::kBefore) steps.push_back({AllocationStep::kBefore, false, i});
    if (allocation.begin != Allocation::kBefore) begun[allocation.begin] = static_cast<std::uint32_t>(i);
    if (allocation.end != Allocation::kNever) ended[allocation.end] = static_cast<std::uint32_t>(i);
  }
  for (std::uint32_t event = 0; event < events; ++event) {
    if (ended[event] != kNone) steps.push_back({event, true, ended[event]});
    if (begun[event] != kNone) steps.push_back({event, false, begun[event]});
  }
  return steps;
}

Trace trace_of(const History& history, const DeviceHistory& device, FailedRequests failed, const TraceStart* start) {
  Trace trace;
  trace.path = history.devices.size() == 1 ? history.path : fmt::format("{} device {}", history.path, device.device);
  TraceOfHistory made(trace);
  RecordedSegment taken;  // for the next allocation
  const auto add = [&](const HistoryEvent& event) {
    if (is_free(event)) made.free(event.address);
    if (event.action == Action::segment_alloc) taken.range = {event.address, event.bytes};
    if (event.action == Action::alloc) {
      made.allocate(event.address, event.bytes, event.stream, event.pool);
      taken.event = trace.events.size() - 1;
      if (taken.range.bytes != 0 || taken.is_after_release) trace.segments.push_back(taken);
      taken = {};
    }
    const bool has_failed = event.action == Action::oom && event.bytes != 0;
    if (has_failed && failed == FailedRequests::played) made.request(event);
  };
  const std::vector<Allocation> earlier = start == nullptr ? earlier_allocations(device) : std::vector<Allocation>();
  const std::size_t before = start == nullptr ? 2 * earlier.size() : start->events.size();
  trace.events.reserve(before + device.events.size() * 2 / 3);  // alloc, free_requested, free_completed
  for (const Allocation& allocation : earlier) {
    made.allocate(allocation.address, allocation.bytes, allocation.stream, allocation.pool);
  }
  if (start != nullptr) std::ranges::for_each(start->events, add);
  const bool releases = !has_pools(device);
  for (std::size_t i = start == nullptr ? 0 : start->left_out; i < device.events.size(); ++i) {
    add(device.events[i]);
    const Release release = releases ? release_ending_at(device.events, i) : Release::none;
    if (release == Release::by_program) made.empty_cache();
    if (release == Release::for_request) taken.is_after_release = true;
  }
  CACHALOT_REQUIRE(!trace.events.empty(), "{}: the history has no allocation and no free", trace.path);
  if (!has_usual_policy(history.settings)) trace.segments.clear();
  made.finish();
  return trace;
}

std::uint64_t earlier_bytes_of(std::span<const Allocation> allocations) {
  std::uint64_t bytes = 0;
  for (const Allocation& one : allocations) bytes += one.begin == Allocation::kBefore ? one.bytes : 0;
  return bytes;
}

bool has_trace(const DeviceHistory& device) {
  const auto is_of_a_trace = [](const HistoryEvent& event) { return event.action == Action::alloc || is_free(event); };
  const auto is_live = [](const HistoryBlock& block) { return block.state == HistoryBlock::State::allocated; };
  return std::ranges::any_of(device.events, is_of_a_trace) ||
         (!device.events.empty() && std::ranges::any_of(device.blocks, is_live));
}

std::vector<Trace> traces_of(const History& history) {
  std::vector<Trace> traces;
  std::vector<const DeviceHistory*> devices;
  for (const DeviceHistory& device : history.devices) {
    if (has_trace(device)) devices.push_back(&device);
  }
  CACHALOT_REQUIRE(!devices.empty(), "{}: the snapshot has no history to replay: {}", history.path,
                   history.unknown_actions == 0 ? "torch.cuda.memory._record_memory_history() was not called before"
                                                : unknown_actions_text(history.unknown_actions));
  for (const DeviceHistory* device : devices) {
    traces.push_back(trace_of(history, *device));
    if (devices.size() == 1) traces.back().path = history.path;
  }
  return traces;
}

}  // namespace cachalot::tools
