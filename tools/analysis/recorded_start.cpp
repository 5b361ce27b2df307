#include "tools/analysis/recorded_start.h"

#include <algorithm>
#include <array>
#include <vector>

#include "cachalot/errors.h"
#include "policy/torch_policy.h"
#include "tools/analysis/layout.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools {
namespace {

// Splits at the commas outside of brackets.
std::vector<std::string_view> parts_of(std::string_view settings) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= settings.size(); ++i) {
    const char c = i < settings.size() ? settings[i] : ',';
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c != ',' || (depth > 0 && i < settings.size())) continue;
    parts.push_back(settings.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

std::string_view key_of_setting(std::string_view part) {
  const std::size_t begin = std::min(part.find_first_not_of(' '), part.size());
  return part.substr(begin, part.find(':', begin) - begin);
}

bool is_valid(std::string_view part) {
  try {
    parse_options(part);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

// Returns the heap with those settings that have one of the keys.
std::string config_with(std::string_view settings, const char* heap, std::span<const std::string_view> keys,
                        std::string_view without) {
  constexpr std::size_t kLongest = 4096;
  std::string config = heap;
  for (const std::string_view part : parts_of(settings.substr(0, kLongest))) {
    const std::string_view key = key_of_setting(part);
    if (key == without || std::ranges::find(keys, key) == keys.end() || !is_valid(part)) continue;
    config.append(",").append(part);
  }
  return is_valid(config) ? config : heap;
}

}  // namespace

std::string segment_config(std::string_view settings, std::string_view without) {
  constexpr std::array<std::string_view, 4> kOfSegments = {"max_split_size_mb", "max_non_split_rounding_mb",
                                                           "roundup_power2_divisions", "large_segment_size_mb"};
  return config_with(settings, "heap:segments", kOfSegments, without);
}

std::string page_config(std::string_view settings) {
  constexpr std::array<std::string_view, 1> kOfPages = {"roundup_power2_divisions"};
  return config_with(settings, "heap:pages", kOfPages, "");
}

Options segment_options(std::string_view settings) { return parse_options(segment_config(settings)); }

bool is_expandable(std::string_view settings) {
  return std::ranges::any_of(parts_of(settings), [](std::string_view part) {
    return key_of_setting(part) == "expandable_segments" && part.ends_with("True");
  });
}

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

}  // namespace

std::optional<std::size_t> recorded_reserved_bytes(const DeviceHistory& device) {
  if (reserved_at_begin(device) != 0 || device.events.empty()) return std::nullopt;
  std::int64_t reserved = 0;
  std::int64_t peak = 0;
  for (const HistoryEvent& event : device.events) peak = std::max(peak, reserved += reserved_change(event));
  if (peak == 0) return std::nullopt;  // the history has no segments
  return static_cast<std::size_t>(peak);
}

std::optional<RecordedStart> recorded_start(const History& history, const DeviceHistory& device,
                                            std::span<const Allocation> allocations) {
  const Options options = segment_options(history.settings);
  const std::vector<std::uint64_t> blocks = block_bytes_of(device, allocations);
  const auto is_rounding = [](std::size_t divisions) { return divisions > 1; };
  if (options.max_split_size != Options::kUnlimited) return std::nullopt;
  if (std::ranges::any_of(options.roundup_power2_divisions, is_rounding)) return std::nullopt;
  const auto first = std::ranges::find_if(device.events, [](const HistoryEvent& event) {
    return event.action != Action::segment_free && event.action != Action::snapshot;
  });
  RecordedStart made;
  made.trace.left_out = static_cast<std::size_t>(first - device.events.begin());
  const Peak start = peak_after(device, allocations, blocks, made.trace.left_out);
  const std::vector<SegmentAt> segments = layout_at(device, allocations, blocks, start, options);
  std::size_t placed = 0;
  std::int64_t reserved = 0;
  StartMaker maker(allocations, options);
  for (const SegmentAt& segment : segments) {
    if (!maker.add(segment)) return std::nullopt;
    placed += segment.live.size();
    reserved += static_cast<std::int64_t>(segment.bytes);
  }
  if (segments.empty() || placed != start.live.size()) return std::nullopt;
  std::int64_t peak = reserved;
  for (auto event = first; event != device.events.end(); ++event)
    peak = std::max(peak, reserved += reserved_change(*event));
  made.peak_reserved_bytes = static_cast<std::uint64_t>(peak);
  made.trace.events = maker.take();
  return made;
}

}  // namespace cachalot::tools
