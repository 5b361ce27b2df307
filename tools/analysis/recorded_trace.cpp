#include "tools/analysis/recorded_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "policy/torch_policy.h"
#include "tools/analysis/program_settings.h"
#include "tools/history/address_map.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

// Makes the events. Each segment is free as a whole for a moment and is then filled from its begin, block after block: all
// segments that were made before are full, so that the rest of this one is the only free block.
class StartMaker {
 public:
  StartMaker(std::span<const Allocation> allocations, const Options& options)
      : allocations_(allocations), options_(options) {}

  // Returns false for a segment that PyTorch does not make or fill this way.
  bool add(const SegmentAt& segment) {
    const std::uint64_t first = segment.is_small ? kSmallSize : segment.bytes;
    const bool is_usual = !segment.is_expandable && segment_size(first, options_.large_segment_size) == segment.bytes;
    if (!is_usual || segment.is_small != (pool_kind(first) == PoolKind::small)) return false;
    add({.address = segment.address, .bytes = segment.bytes}, Action::segment_alloc);
    allocate(segment, segment.address, first);
    free(segment, segment.address, first);
    Address at = segment.address;
    for (const LiveBlock& block : segment.live) {
      const Address address = allocations_[block.allocation].address;
      if (!add_free(segment, at, address) || !is_of_pool(segment, block.bytes)) return false;
      allocate(segment, address, block.bytes);
      at = address + block.bytes;
    }
    return add_free(segment, at, segment.address + segment.bytes);
  }

  // Frees what is to be free.
  std::vector<HistoryEvent> take() {
    for (const HistoryEvent& block : free_) {
      add(block, Action::free_requested);
      add(block, Action::free_completed);
    }
    return std::move(events_);
  }

 private:
  static bool is_of_pool(const SegmentAt& segment, std::uint64_t bytes) {
    return segment.is_small == (pool_kind(bytes) == PoolKind::small);
  }

  // A free block of the small pool may be larger than its largest request: pieces, which merge when they are freed.
  bool add_free(const SegmentAt& segment, Address begin, Address end) {
    const std::uint64_t most = segment.is_small ? kSmallSize : segment.bytes;
    while (begin < end) {
      const std::uint64_t bytes = std::min(most, end - begin);
      if (!is_of_pool(segment, bytes)) return false;
      allocate(segment, begin, bytes);
      free_.push_back(events_.back());
      begin += bytes;
    }
    return true;
  }

  void allocate(const SegmentAt& segment, Address address, std::uint64_t bytes) {
    add({.address = address, .bytes = bytes, .stream = segment.stream, .pool = segment.pool}, Action::alloc);
  }
  void free(const SegmentAt& segment, Address address, std::uint64_t bytes) {
    for (const Action action : {Action::free_requested, Action::free_completed})
      add({.address = address, .bytes = bytes, .stream = segment.stream, .pool = segment.pool}, action);
  }
  void add(HistoryEvent event, Action action) {
    event.action = action;
    events_.push_back(event);
  }

  std::span<const Allocation> allocations_;
  const Options& options_;
  std::vector<HistoryEvent> events_;
  std::vector<HistoryEvent> free_;
};

// Returns the most bytes that are reserved, of those before the first event and after each.
std::int64_t most_reserved(std::span<const HistoryEvent> events, std::int64_t reserved) {
  std::int64_t most = reserved;
  for (const HistoryEvent& event : events) most = std::max(most, reserved += reserved_change(event));
  return most;
}

}  // namespace

std::optional<std::size_t> recorded_reserved_bytes(const DeviceHistory& device) {
  if (reserved_at_begin(device) != 0 || device.events.empty()) return std::nullopt;
  const std::int64_t peak = most_reserved(device.events, 0);
  if (peak == 0) return std::nullopt;  // the history has no segments
  return static_cast<std::size_t>(peak);
}

std::optional<RecordedStart> recorded_start(const Timeline& timeline) {
  const Options& options = timeline.options();
  const auto is_rounding = [](std::size_t divisions) { return divisions > 1; };
  if (options.max_split_size != Options::kUnlimited) return std::nullopt;
  if (std::ranges::any_of(options.roundup_power2_divisions, is_rounding)) return std::nullopt;
  const auto first = std::ranges::find_if(timeline.events(), [](const HistoryEvent& event) {
    return event.action != Action::segment_free && event.action != Action::snapshot;
  });
  RecordedStart made;
  made.left_out = static_cast<std::size_t>(first - timeline.events().begin());
  const Moment start = timeline.moment_after(made.left_out);
  const std::vector<SegmentAt> segments = timeline.segments_at(start);
  std::size_t placed = 0;
  std::int64_t reserved = 0;
  StartMaker maker(timeline.allocations(), options);
  for (const SegmentAt& segment : segments) {
    if (!maker.add(segment)) return std::nullopt;
    placed += segment.live.size();
    reserved += static_cast<std::int64_t>(segment.bytes);
  }
  if (segments.empty() || placed != start.live.size()) return std::nullopt;
  const std::span later = std::span(timeline.events()).subspan(made.left_out);
  made.peak_reserved_bytes = static_cast<std::uint64_t>(most_reserved(later, reserved));
  made.events = maker.take();
  return made;
}

namespace {

bool is_free(const HistoryEvent& event) {
  return event.action == Action::free_requested || event.action == Action::free_completed;
}

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
  const bool asks = next.action == Action::segment_alloc || next.action == Action::segment_map;
  const bool is_for_request = next.action == Action::oom || (asks && next.stack == events[number].stack);
  return is_for_request ? Release::for_request : Release::by_program;
}

// Returns whether PyTorch's own sizes of segments, and its own moments to give memory back, follow from its requests
// alone.
bool has_usual_policy(std::string_view settings) {
  constexpr std::array<std::string_view, 4> kOthers = {"max_split_size", "roundup_power2", "large_segment", "garbage"};
  return std::ranges::all_of(kOthers, [&](auto key) { return settings.find(key) == std::string_view::npos; });
}

// Makes a trace of a timeline.
class TraceOfTimeline {
 public:
  TraceOfTimeline(const Timeline& timeline, const TraceOptions& options)
      : timeline_(timeline), options_(options), slots_(timeline.allocations().size(), kNone) {
    const std::size_t devices = timeline.history().devices.size();
    trace_.path = devices == 1 ? path() : fmt::format("{} device {}", path(), timeline.device().device);
  }

  Trace make() {
    const std::size_t start = options_.start == nullptr ? 2 * timeline_.earlier() : options_.start->events.size();
    trace_.events.reserve(start + timeline_.events().size() * 2 / 3);  // alloc, free_requested, free_completed
    begin();
    const bool releases = !has_pools(timeline_.device());
    for (std::size_t i = options_.start == nullptr ? 0 : options_.start->left_out; i < timeline_.events().size(); ++i) {
      follow(i);
      const Release release = releases ? release_ending_at(timeline_.events(), i) : Release::none;
      if (release == Release::by_program) empty_cache();
      if (release == Release::for_request) taken_.is_after_release = true;
    }
    if (options_.request) fail(options_.request->bytes, options_.request->stream, options_.request->pool);
    CACHALOT_REQUIRE(!trace_.events.empty(), "{}: the history has no allocation and no free", trace_.path);
    if (!options_.follows_segments || !has_usual_policy(timeline_.history().settings)) trace_.segments.clear();
    trace_.event_count = trace_.events.size();
    trace_.slots = maker_.slots();
    trace_.streams = maker_.streams();
    for (const std::uint64_t number : maker_.stream_numbers())
      trace_.pools.push_back(static_cast<std::uint16_t>(number >> 16));
    return std::move(trace_);
  }

 private:
  static constexpr std::uint32_t kNone = AddressMap::kNone;

  const std::string& path() const { return timeline_.history().path; }

  // Makes the memory from before the first event.
  void begin() {
    AddressMap live;  // slots
    if (options_.start != nullptr) {
      for (const HistoryEvent& event : options_.start->events) follow_start(event, live);
    }
    for (std::size_t i = 0; i < timeline_.earlier(); ++i) {
      const Allocation& one = timeline_.allocations()[i];
      slots_[i] = options_.start == nullptr ? allocate(one.bytes, one.stream, one.pool) : live.find(one.address);
    }
  }

  void follow_start(const HistoryEvent& event, AddressMap& live) {
    if (event.action == Action::segment_alloc) taken_.range = {event.address, event.bytes};
    if (event.action == Action::alloc) live.set(event.address, allocate(event.bytes, event.stream, event.pool));
    if (event.action == Action::free_requested) trace_.events.push_back(maker_.free(live.erase(event.address)));
  }

  void follow(std::size_t number) {
    const HistoryEvent& event = timeline_.events()[number];
    if (const std::uint32_t ended = timeline_.ended_by(number); ended != Timeline::kNone) free(ended);
    if (event.action == Action::segment_alloc) taken_.range = {event.address, event.bytes};
    if (const std::uint32_t begun = timeline_.begun_by(number); begun != Timeline::kNone)
      slots_[begun] = allocate(event.bytes, event.stream, event.pool);
    if (event.action == Action::oom && event.bytes != 0 && options_.plays_failures)
      fail(event.bytes, event.stream, event.pool);
    const auto [freed, end] = options_.freed.equal_range(static_cast<std::uint32_t>(number));
    for (auto one = freed; one != end; ++one) free(one->second);
  }

  void fail(std::uint64_t bytes, std::uint16_t stream, std::uint16_t pool) {
    trace_.events.push_back(maker_.free(make(bytes, stream, pool)));
    ++trace_.failed_requests;
  }

  // Nothing happens where the allocation was freed before.
  void free(std::uint32_t allocation) {
    const std::uint32_t slot = std::exchange(slots_[allocation], kNone);
    if (slot != kNone) trace_.events.push_back(maker_.free(slot));
  }

  void empty_cache() { trace_.events.push_back({.bytes = 0, .slot = TraceEvent::kCache, .stream = TraceEvent::kFree}); }

  // Returns the slot. The segment that was taken for the allocation is listed.
  std::uint32_t allocate(std::uint64_t bytes, std::uint16_t stream, std::uint16_t pool) {
    const std::uint32_t slot = make(bytes, stream, pool);
    taken_.event = trace_.events.size() - 1;
    if (taken_.range.bytes != 0 || taken_.is_after_release) trace_.segments.push_back(taken_);
    taken_ = {};
    return slot;
  }

  std::uint32_t make(std::uint64_t bytes, std::uint16_t stream, std::uint16_t pool) {
    if (!options_.streams.empty()) stream = options_.streams[stream];
    if (!options_.pools.empty()) pool = options_.pools[pool];
    const std::uint64_t number = (std::uint64_t{pool} << 16) + stream;
    CACHALOT_REQUIRE(maker_.can_allocate(), "{}: more than {} allocations are alive at once", trace_.path,
                     Trace::kMostSlots);
    CACHALOT_REQUIRE(maker_.can_use(number), "{}: more than {} streams", trace_.path, Trace::kMostStreams);
    trace_.events.push_back(maker_.allocate(bytes, number));
    ++trace_.allocation_count;
    return trace_.events.back().slot;
  }

  const Timeline& timeline_;
  const TraceOptions& options_;
  Trace trace_;
  TraceMaker maker_;
  std::vector<std::uint32_t> slots_;  // of the live allocations
  RecordedSegment taken_;             // for the next allocation
};

}  // namespace

Trace trace_of(const Timeline& timeline, const TraceOptions& options) {
  return TraceOfTimeline(timeline, options).make();
}

bool has_trace(const DeviceHistory& device) {
  const auto is_of_a_trace = [](const HistoryEvent& event) { return event.action == Action::alloc || is_free(event); };
  const auto is_no_failure = [](const HistoryEvent& event) { return event.action != Action::oom; };
  const auto is_live = [](const HistoryBlock& block) { return block.state == HistoryBlock::State::allocated; };
  return std::ranges::any_of(device.events, is_of_a_trace) ||
         (std::ranges::any_of(device.events, is_no_failure) && std::ranges::any_of(device.blocks, is_live));
}

Trace program_trace_of(const Timeline& timeline) {
  Trace trace = trace_of(timeline);
  if (is_expandable(timeline.history().settings)) return trace;
  if (const auto start = recorded_start(timeline))
    trace.as_recorded = std::make_shared<const Trace>(trace_of(timeline, {.start = &*start}));
  return trace;
}

std::vector<Trace> traces_of(const History& history) {
  std::vector<const DeviceHistory*> devices;
  for (const DeviceHistory& device : history.devices) {
    if (has_trace(device)) devices.push_back(&device);
  }
  CACHALOT_REQUIRE(!devices.empty(), "{}: the snapshot has no history to replay: {}", history.path,
                   history.unknown_actions == 0 ? "torch.cuda.memory._record_memory_history() was not called before"
                                                : unknown_actions_text(history.unknown_actions));
  std::vector<Trace> traces;
  for (const DeviceHistory* device : devices) {
    traces.push_back(program_trace_of(Timeline(history, *device)));
    if (devices.size() == 1) traces.back().path = history.path;
  }
  return traces;
}

}  // namespace cachalot::tools
