#include "tools/analysis/timeline.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>

#include "base/check.h"
#include "policy/torch_policy.h"
#include "tools/analysis/layout.h"
#include "tools/base/quoted.h"

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

// Follows segments and blocks, to know what PyTorch did not split off a block as it allocated it: what lay free behind it then, up to
// the next block or the segment's end, if it is not more than should_split leaves.
class Remainders {
 public:
  Remainders(const DeviceHistory& device, std::span<const Allocation> allocations)
      : device_(device), ranges_(recorded_ranges(device)) {
    for (std::uint32_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].begin == Allocation::kBefore) open(ranges_[i]);
      if (ranges_[i].end != Allocation::kNever) closing_.push_back(i);
    }
    std::ranges::sort(closing_, {}, [&](std::uint32_t i) { return ranges_[i].end; });
    next_range_ = static_cast<std::size_t>(
        std::ranges::find_if(ranges_, [](const MemoryRange& one) { return one.begin != Allocation::kBefore; }) -
        ranges_.begin());
    for (const Allocation& one : allocations) {
      if (one.begin == Allocation::kBefore) blocks_[one.address] = one.address + rounded(one.bytes);
    }
  }

  // Returns the bytes of the block; call it for the allocations of the history in their order.
  std::uint64_t block_bytes(const Allocation& one) {
    for (; event_ < one.begin; ++event_) follow(device_.events[event_]);
    const Address end = one.address + rounded(one.bytes);
    const Address free_until = end_of_free(one.address, end);
    const bool is_kept = rounded(one.bytes) > kSmallSize && free_until - end <= kMinLargeRemainder;
    blocks_[one.address] = is_kept ? free_until : end;
    return blocks_[one.address] - one.address;
  }

 private:
  void open(const MemoryRange& range) { segments_[range.address] = range.address + range.bytes; }

  void follow(const HistoryEvent& event) {
    for (; next_close_ < closing_.size() && ranges_[closing_[next_close_]].end == event_; ++next_close_)
      segments_.erase(ranges_[closing_[next_close_]].address);
    for (; next_range_ < ranges_.size() && ranges_[next_range_].begin == event_; ++next_range_)
      open(ranges_[next_range_]);
    if (event.action == Action::free_completed) blocks_.erase(event.address);
  }

  // Returns where the free memory ends that begins at `end`, in the segment of the block at `address`; `end`, where it is not known.
  Address end_of_free(Address address, Address end) const {
    const auto behind = segments_.upper_bound(address);
    if (behind == segments_.begin() || std::prev(behind)->second < end) return end;
    const auto next = blocks_.upper_bound(address);
    return std::max(
        end, next == blocks_.end() ? std::prev(behind)->second : std::min(next->first, std::prev(behind)->second));
  }

  const DeviceHistory& device_;
  std::vector<MemoryRange> ranges_;     // by the event of their begin
  std::vector<std::uint32_t> closing_;  // the ranges that end, by event
  std::size_t next_range_ = 0;
  std::size_t next_close_ = 0;
  std::uint32_t event_ = 0;
  std::map<Address, Address> segments_;  // their ends, by their begins
  std::map<Address, Address> blocks_;
};

// Expandable segments split blocks of any size.
bool keeps_remainders(const DeviceHistory& device) {
  return std::ranges::any_of(device.events,
                             [](const HistoryEvent& event) { return event.action == Action::segment_alloc; }) &&
         std::ranges::none_of(device.events,
                              [](const HistoryEvent& event) { return event.action == Action::segment_map; });
}

}  // namespace

std::vector<std::uint64_t> block_bytes_of(const DeviceHistory& device, std::span<const Allocation> allocations) {
  std::map<Address, std::uint64_t> at_the_end;
  for (const HistoryBlock& block : device.blocks) {
    if (block.state == HistoryBlock::State::allocated) at_the_end.emplace(block.address, block.bytes);
  }
  std::optional<Remainders> remainders;
  if (keeps_remainders(device)) remainders.emplace(device, allocations);
  std::vector<std::uint64_t> bytes;
  bytes.reserve(allocations.size());
  for (const Allocation& one : allocations) {
    const bool is_followed = remainders && one.begin != Allocation::kBefore;
    bytes.push_back(is_followed ? remainders->block_bytes(one) : rounded(one.bytes));
    const auto block = one.end == Allocation::kNever ? at_the_end.find(one.address) : at_the_end.end();
    if (block != at_the_end.end()) bytes.back() = block->second;
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

namespace {

// Returns how many events had happened at the peak.
std::size_t events_until_peak(HeldCursor cursor, std::uint64_t Held::*bytes) {
  std::size_t at = 0;
  std::uint64_t peak = cursor.held().*bytes;
  while (!cursor.is_at_end()) {
    cursor.advance();
    if (cursor.held().*bytes <= peak) continue;
    peak = cursor.held().*bytes;
    at = cursor.event();
  }
  return at;
}

}  // namespace

std::optional<std::size_t> last_oom(const DeviceHistory& device) {
  for (std::size_t i = device.events.size(); i > 0; --i) {
    if (device.events[i - 1].action == HistoryEvent::Action::oom) return i - 1;
  }
  return std::nullopt;
}

Peak peak_after(const DeviceHistory& device, std::span<const Allocation> allocations,
                std::span<const std::uint64_t> blocks, std::size_t events) {
  HeldCursor cursor(device, allocations, blocks);
  while (cursor.event() < events) cursor.advance();
  Peak peak{.event = events, .held = cursor.held(), .live = {}};
  if (!device.events.empty()) peak.time_us = device.events[events == 0 ? 0 : events - 1].time_us;
  for (std::uint32_t i = 0; i < allocations.size(); ++i) {
    const Allocation& one = allocations[i];
    const bool has_begun = one.begin == Allocation::kBefore || one.begin < events;
    if (has_begun && (one.end == Allocation::kNever || one.end >= events)) peak.live.push_back(i);
  }
  return peak;
}

std::optional<Peak> find_peak(const DeviceHistory& device, std::span<const Allocation> allocations,
                              std::span<const std::uint64_t> blocks, PeakKind kind) {
  std::size_t event = device.events.size();
  if (kind == PeakKind::out_of_memory) {
    const std::optional<std::size_t> oom = last_oom(device);
    if (!oom) return std::nullopt;
    event = *oom + 1;
  } else if (kind != PeakKind::end) {
    event = events_until_peak(HeldCursor(device, allocations, blocks),
                              kind == PeakKind::allocated_peak ? &Held::allocated : &Held::reserved);
  }
  Peak peak = peak_after(device, allocations, blocks, event);
  peak.kind = kind;
  return peak;
}

namespace {

std::optional<PeakKind> kind_of(const std::string& at) {
  if (at == "peak") return PeakKind::allocated_peak;
  if (at == "reserved") return PeakKind::reserved_peak;
  if (at == "oom") return PeakKind::out_of_memory;
  if (at == "end") return PeakKind::end;
  return std::nullopt;
}

std::size_t event_of(const std::string& path, const DeviceHistory& device, const std::string& at) {
  std::size_t event = 0;
  const auto [stopped, error] = std::from_chars(at.data(), at.data() + at.size(), event);
  CACHALOT_REQUIRE(error == std::errc() && stopped == at.data() + at.size(),
                   "--at: {} is not peak, reserved, oom, end or a number of events", fmt::to_string(Quoted{at}));
  CACHALOT_REQUIRE(event <= device.events.size(), "--at: {}: device {} has {} events, fewer than {}", path,
                   device.device, device.events.size(), event);
  return event;
}

}  // namespace

Peak asked_peak(const std::string& path, const DeviceHistory& device, std::span<const Allocation> allocations,
                const std::string& at) {
  const std::vector<std::uint64_t> blocks = block_bytes_of(device, allocations);
  const std::optional<PeakKind> kind = kind_of(at);
  if (!kind) return peak_after(device, allocations, blocks, event_of(path, device, at));
  std::optional<Peak> peak = find_peak(device, allocations, blocks, *kind);
  CACHALOT_REQUIRE(peak.has_value(), "--at oom: {}: no allocation of device {} failed", path, device.device);
  return std::move(*peak);
}

namespace {

constexpr std::size_t kDeepest = 64;             // stages in one another: those further in are left out
constexpr std::size_t kMostStages = 1 << 16;     // distinct ones: further ones count as that around them
constexpr std::size_t kLongestStageName = 1000;  // bytes

void follow(const StageMark& mark, std::vector<TextId>& open) {
  if (mark.begins) {
    if (open.size() < kDeepest) open.push_back(mark.name);
    return;
  }
  const auto last = std::find(open.rbegin(), open.rend(), mark.name);
  if (last != open.rend()) open.erase(std::next(last).base());
}

}  // namespace

Stages::Stages(const History& history, const DeviceHistory& device) {
  if (history.stages.empty()) return;
  std::map<std::vector<TextId>, StageId> ids = {{{}, 0}};
  std::vector<TextId> open;
  StageId stage = 0;
  const auto enter = [&] {
    const auto known = ids.find(open);
    if (known != ids.end()) {
      stage = known->second;
      return;
    }
    if (ids.size() >= kMostStages) return;
    stage = static_cast<StageId>(names_.size());
    ids.emplace(open, stage);
    open_.push_back(open);
    std::string name;
    for (const TextId text : open) name += (name.empty() ? "" : " > ") + std::string(history.texts[text]);
    names_.push_back(name.substr(0, kLongestStageName));
  };
  by_event_.reserve(device.events.size());
  auto mark = history.stages.begin();
  for (const HistoryEvent& event : device.events) {
    // In one microsecond, what begins comes before the event, and what ends after it.
    for (; mark != history.stages.end() &&
           (mark->time_us < event.time_us || (mark->time_us == event.time_us && mark->begins));
         ++mark) {
      if (mark->device != device.device) continue;
      follow(*mark, open);
      enter();
    }
    by_event_.push_back(stage);
  }
}

}  // namespace cachalot::tools
