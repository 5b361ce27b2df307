#include "tools/analysis/timeline.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "policy/torch_policy.h"
#include "tools/analysis/program_settings.h"
#include "tools/base/quoted.h"
#include "tools/history/address_map.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

std::atomic<std::size_t> timelines_made = 0;

Allocation allocation_of(const HistoryEvent& event, std::uint32_t begin) {
  return {.address = event.address,
          .bytes = event.bytes,
          .begin = begin,
          .stack = event.stack,
          .details = event.details,
          .stream = event.stream,
          .pool = event.pool};
}

// Pairs each request with its free.
class Pairing {
 public:
  void reserve(std::size_t allocations) { made_.reserve(allocations); }

  void follow(const HistoryEvent& event, std::uint32_t number) {
    switch (event.action) {
      case Action::alloc:
        return allocate(event, number);
      case Action::free_requested:
      case Action::free_completed:
        return free(event, number);
      case Action::annotate:
        return annotate(event);
      default:
        return;
    }
  }

  // Adds a block that lives at the end, unless the events have it. They may lack its call stack.
  void add_last(const HistoryBlock& block, const HistorySegment& segment) {
    if (block.state != HistoryBlock::State::allocated) return;
    if (Allocation* const live = find(block.address)) {
      if (live->stack == 0) live->stack = block.stack;
      if (live->details == 0) live->details = block.details;
    }
    if (places_.find(block.address) != AddressMap::kNone) return;
    places_.set(block.address, kGone);
    earlier_.push_back({.address = block.address,
                        .bytes = block.requested_bytes,
                        .stack = block.stack,
                        .details = block.details,
                        .stream = segment.stream,
                        .pool = segment.pool});
  }

  std::size_t earlier() const { return earlier_.size(); }
  std::vector<Allocation> take() {
    std::ranges::sort(earlier_, {}, &Allocation::address);
    earlier_.reserve(earlier_.size() + made_.size());
    std::ranges::copy(made_, std::back_inserter(earlier_));
    return std::move(earlier_);
  }

 private:
  static constexpr std::uint32_t kEarlier = std::uint32_t{1} << 31;  // with an index in earlier_
  static constexpr std::uint32_t kGone = kEarlier - 1;               // nothing lives there any more

  void allocate(const HistoryEvent& event, std::uint32_t number) {
    if (Allocation* const live = find(event.address)) live->end = number;
    places_.set(event.address, static_cast<std::uint32_t>(made_.size()));
    made_.push_back(allocation_of(event, number));
  }

  // Nothing happens where nothing lives. A free that is completed alone tells nothing of its block.
  void free(const HistoryEvent& event, std::uint32_t number) {
    const std::uint32_t place = places_.find(event.address);
    if (place == AddressMap::kNone && event.action == Action::free_requested) {
      earlier_.push_back(allocation_of(event, Allocation::kBefore));
      earlier_.back().stack = earlier_.back().details = 0;  // those of the free
      earlier_.back().end = number;
    } else if (Allocation* const live = find(event.address)) {
      live->end = number;
    }
    places_.set(event.address, kGone);
  }

  void annotate(const HistoryEvent& event) {
    if (Allocation* const live = find(event.address)) {
      live->details = event.details;
    } else if (places_.find(event.address) == AddressMap::kNone) {
      places_.set(event.address, kEarlier + static_cast<std::uint32_t>(earlier_.size()));
      earlier_.push_back(allocation_of(event, Allocation::kBefore));
    }
  }

  // Returns what lives at the address.
  Allocation* find(Address address) {
    const std::uint32_t place = places_.find(address);
    if (place == AddressMap::kNone || place == kGone) return nullptr;
    return place >= kEarlier ? &earlier_[place - kEarlier] : &made_[place];
  }

  std::vector<Allocation> earlier_;
  std::vector<Allocation> made_;
  AddressMap places_;  // of each address that the events name
};

// A hostile file can make any sum wrong: none is below zero.
std::uint64_t changed(std::uint64_t bytes, std::int64_t by) {
  const auto sum = static_cast<std::int64_t>(bytes) + by;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, sum));
}

void subtract(std::uint64_t& from, std::uint64_t bytes) { from -= std::min(from, bytes); }

// The sizes of blocks under the program's settings.
std::uint64_t rounded(std::uint64_t bytes, const Options& options) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;
  return round_size(std::clamp<std::uint64_t>(bytes, 1, kLargest), options);
}

// Follows segments and blocks, to know what PyTorch did not split off a block as it allocated it: what lay free behind it then, up to
// the next block or the segment's end, if it is not more than should_split leaves.
class Remainders {
 public:
  explicit Remainders(const Timeline& timeline)
      : events_(timeline.events()), options_(timeline.options()), ranges_(timeline.segments()) {
    for (std::uint32_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].begin == Allocation::kBefore) open(ranges_[i]);
      if (ranges_[i].end != Allocation::kNever) closing_.push_back(i);
    }
    std::ranges::sort(closing_, {}, [&](std::uint32_t i) { return ranges_[i].end; });
    next_range_ = static_cast<std::size_t>(
        std::ranges::find_if(ranges_, [](const MemoryRange& one) { return one.begin != Allocation::kBefore; }) -
        ranges_.begin());
    for (std::size_t i = 0; i < timeline.earlier(); ++i) {
      const Allocation& one = timeline.allocations()[i];
      blocks_[one.address] = one.address + rounded(one.bytes, options_);
    }
  }

  // Returns the bytes of the block; call it for the allocations of the history in their order.
  std::uint64_t block_bytes(const Allocation& one) {
    for (; event_ < one.begin; ++event_) follow(events_[event_]);
    const Address end = one.address + rounded(one.bytes, options_);
    const Address free_until = end_of_free(one.address, end);
    const std::uint64_t bytes = rounded(one.bytes, options_);
    const bool is_kept =
        bytes > kSmallSize && !should_split(PoolKind::large, free_until - one.address, bytes, options_);
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

  const std::vector<HistoryEvent>& events_;
  const Options& options_;
  const std::vector<MemoryRange>& ranges_;  // by the event of their begin
  std::vector<std::uint32_t> closing_;      // the ranges that end, by event
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

// Returns the blocks that live at the end.
std::map<Address, std::uint64_t> last_blocks(const DeviceHistory& device) {
  std::map<Address, std::uint64_t> blocks;
  for (const HistoryBlock& block : device.blocks) {
    if (block.state == HistoryBlock::State::allocated) blocks.emplace(block.address, block.bytes);
  }
  return blocks;
}

}  // namespace

Timeline::Timeline(const History& history, const DeviceHistory& device)
    : history_(&history), device_(&device), options_(segment_options(history.settings)) {
  constexpr std::uint32_t kMostEvents = std::numeric_limits<std::int32_t>::max();
  CACHALOT_REQUIRE(events().size() < kMostEvents, "a history of more than {} events", kMostEvents);
  ++timelines_made;
  Pairing pairing;
  pairing.reserve(static_cast<std::size_t>(std::ranges::count(events(), Action::alloc, &HistoryEvent::action)));
  for (std::size_t i = 0; i < events().size(); ++i) pairing.follow(events()[i], static_cast<std::uint32_t>(i));
  for (const HistorySegment& segment : device.segments) {
    for (const HistoryBlock& block : device.blocks_of(segment)) pairing.add_last(block, segment);
  }
  earlier_ = pairing.earlier();
  allocations_ = pairing.take();
  begun_.assign(events().size(), kNone);
  ended_.assign(events().size(), kNone);
  for (std::uint32_t i = 0; i < allocations_.size(); ++i) {
    if (i >= earlier_) begun_[allocations_[i].begin] = i;
    if (allocations_[i].end != Allocation::kNever) ended_[allocations_[i].end] = i;
  }
}

std::size_t Timeline::made() { return timelines_made; }

std::uint64_t Timeline::earlier_bytes() const {
  std::uint64_t bytes = 0;
  for (const Allocation& one : std::span(allocations_).first(earlier_)) bytes += one.bytes;
  return bytes;
}

const DeviceFacts::Failing* Timeline::told() const {
  const DeviceFacts* const known = facts();
  return known == nullptr || !known->failing ? nullptr : &*known->failing;
}

const std::vector<MemoryRange>& Timeline::segments() const {
  if (!segments_) segments_ = recorded_ranges(*device_);
  return *segments_;
}

const std::vector<std::uint64_t>& Timeline::block_bytes() const {
  if (block_bytes_) return *block_bytes_;
  const std::map<Address, std::uint64_t> at_the_end = last_blocks(*device_);
  std::optional<Remainders> remainders;
  if (keeps_remainders(*device_)) remainders.emplace(*this);
  std::vector<std::uint64_t>& bytes = block_bytes_.emplace();
  bytes.reserve(allocations_.size());
  for (const Allocation& one : allocations_) {
    const bool is_followed = remainders && one.begin != Allocation::kBefore;
    bytes.push_back(is_followed ? remainders->block_bytes(one) : rounded(one.bytes, options_));
    const auto block = one.end == Allocation::kNever ? at_the_end.find(one.address) : at_the_end.end();
    if (block != at_the_end.end()) bytes.back() = block->second;
  }
  return bytes;
}

HeldCursor::HeldCursor(const Timeline& timeline) : timeline_(timeline), blocks_(timeline.block_bytes()) {
  held_.reserved = static_cast<std::uint64_t>(std::max<std::int64_t>(0, reserved_at_begin(timeline.device())));
  for (std::uint32_t i = 0; i < timeline.earlier(); ++i) begin(i);
  held_.active = held_.allocated;
}

bool HeldCursor::is_at_end() const { return event_ == timeline_.events().size(); }

void HeldCursor::advance() {
  const HistoryEvent& event = timeline_.events()[event_];
  if (const std::uint32_t ended = timeline_.ended_by(event_); ended != Timeline::kNone) end(ended);
  if (const std::uint32_t begun = timeline_.begun_by(event_); begun != Timeline::kNone) begin(begun);
  ++event_;
  if (event.action == Action::free_completed)
    pending_ -= static_cast<std::int64_t>(round_to_block(std::max<std::uint64_t>(1, event.bytes)));
  pending_ = std::max<std::int64_t>(0, pending_);
  held_.reserved = changed(held_.reserved, reserved_change(event));
  held_.active = changed(held_.allocated, pending_);
}

void HeldCursor::begin(std::uint32_t allocation) {
  held_.requested += timeline_.allocations()[allocation].bytes;
  held_.allocated += blocks_[allocation];
}

void HeldCursor::end(std::uint32_t allocation) {
  const Allocation& one = timeline_.allocations()[allocation];
  subtract(held_.requested, one.bytes);
  subtract(held_.allocated, blocks_[allocation]);
  if (timeline_.events()[one.end].action == Action::free_requested)
    pending_ += static_cast<std::int64_t>(round_to_block(std::max<std::uint64_t>(1, one.bytes)));
}

const Timeline::Peaks& Timeline::peaks() const {
  if (peaks_) return *peaks_;
  HeldCursor cursor(*this);
  Peaks& peaks = peaks_.emplace(Peaks{.most = cursor.held()});
  while (!cursor.is_at_end()) {
    cursor.advance();
    const Held& held = cursor.held();
    if (held.allocated > peaks.most.allocated) peaks.allocated_event = cursor.event();
    if (held.reserved > peaks.most.reserved) peaks.reserved_event = cursor.event();
    peaks.most = {.requested = std::max(peaks.most.requested, held.requested),
                  .allocated = std::max(peaks.most.allocated, held.allocated),
                  .active = std::max(peaks.most.active, held.active),
                  .reserved = std::max(peaks.most.reserved, held.reserved)};
  }
  return peaks;
}

const Held& Timeline::most_held() const { return peaks().most; }

std::optional<std::size_t> Timeline::last_oom() const {
  for (std::size_t i = events().size(); i > 0; --i) {
    if (events()[i - 1].action == Action::oom) return i - 1;
  }
  return std::nullopt;
}

Moment Timeline::moment_after(std::size_t events) const {
  HeldCursor cursor(*this);
  while (cursor.event() < events) cursor.advance();
  Moment moment{.event = events, .held = cursor.held(), .live = {}};
  if (!device_->events.empty()) moment.time_us = device_->events[events == 0 ? 0 : events - 1].time_us;
  for (std::uint32_t i = 0; i < allocations_.size(); ++i) {
    const Allocation& one = allocations_[i];
    const bool has_begun = one.begin == Allocation::kBefore || one.begin < events;
    if (has_begun && (one.end == Allocation::kNever || one.end >= events)) moment.live.push_back(i);
  }
  return moment;
}

std::optional<Moment> Timeline::moment(MomentKind kind) const {
  std::size_t event = events().size();
  if (kind == MomentKind::out_of_memory) {
    const std::optional<std::size_t> oom = last_oom();
    if (!oom) return std::nullopt;
    event = *oom + 1;
  } else if (kind != MomentKind::end) {
    event = kind == MomentKind::allocated_peak ? peaks().allocated_event : peaks().reserved_event;
  }
  Moment moment = moment_after(event);
  moment.kind = kind;
  return moment;
}

namespace {

std::optional<MomentKind> kind_of(const std::string& at) {
  if (at == "peak") return MomentKind::allocated_peak;
  if (at == "reserved") return MomentKind::reserved_peak;
  if (at == "oom") return MomentKind::out_of_memory;
  if (at == "end") return MomentKind::end;
  return std::nullopt;
}

std::size_t event_of(const History& history, const DeviceHistory& device, const std::string& at) {
  std::size_t event = 0;
  const auto [stopped, error] = std::from_chars(at.data(), at.data() + at.size(), event);
  CACHALOT_REQUIRE(error == std::errc() && stopped == at.data() + at.size(),
                   "--at: {} is not peak, reserved, oom, end or a number of events", fmt::to_string(Quoted{at}));
  CACHALOT_REQUIRE(event <= device.events.size(), "--at: {}: device {} has {} events, fewer than {}", history.path,
                   device.device, device.events.size(), event);
  return event;
}

}  // namespace

Moment Timeline::asked_moment(const std::string& at) const {
  const std::optional<MomentKind> kind = kind_of(at);
  if (!kind) return moment_after(event_of(*history_, *device_, at));
  std::optional<Moment> found = moment(*kind);
  const auto has_failure = [](const DeviceHistory& device) {
    return std::ranges::find(device.events, Action::oom, &HistoryEvent::action) != device.events.end();
  };
  if (!found && std::ranges::any_of(history_->devices, has_failure))
    found = moment(MomentKind::end);  // of another device
  CACHALOT_REQUIRE(found.has_value(), "--at oom: {}: no allocation of device {} failed", history_->path,
                   device_->device);
  return std::move(*found);
}

namespace {

void add_free(SegmentAt& segment, std::uint64_t bytes) {
  if (bytes == 0) return;
  ++segment.free_pieces;
  segment.free_bytes += bytes;
  segment.largest_free_bytes = std::max(segment.largest_free_bytes, bytes);
}

// Adds what lies between a block and the next one: what PyTorch does not split off is the block's.
void add_gap(SegmentAt& segment, std::uint64_t gap, std::uint64_t requested, const Options& options) {
  LiveBlock& block = segment.live.back();
  const PoolKind kind = segment.is_small ? PoolKind::small : PoolKind::large;
  const std::uint64_t rounded =
      std::max<std::uint64_t>(block.bytes, round_size(std::max<std::uint64_t>(1, requested), options));
  const std::uint64_t whole = block.bytes + gap;
  const bool is_split = segment.is_expandable || should_split(kind, whole, std::min(rounded, whole), options);
  const std::uint64_t bytes = is_split ? std::min(rounded, whole) : whole;
  segment.live_bytes += bytes - block.bytes;
  block.bytes = bytes;
  add_free(segment, whole - bytes);
}

}  // namespace

// Neighbours of one expandable segment are one.
std::vector<SegmentAt> Timeline::empty_segments_after(std::size_t events) const {
  std::vector<MemoryRange> held;
  std::ranges::copy_if(segments(), std::back_inserter(held), [&](const MemoryRange& range) {
    return (range.begin == MemoryRange::kBefore || range.begin < events) && range.end >= events;
  });
  std::ranges::sort(held, {}, &MemoryRange::address);
  std::vector<SegmentAt> segments;
  for (const MemoryRange& range : held) {
    SegmentAt* const last = segments.empty() ? nullptr : &segments.back();
    if (last != nullptr && last->is_expandable && range.is_expandable && last->address + last->bytes == range.address &&
        last->stream == range.stream && last->pool == range.pool && last->is_small == range.is_small) {
      last->bytes += range.bytes;
    } else {
      segments.push_back({.address = range.address,
                          .bytes = range.bytes,
                          .stream = range.stream,
                          .pool = range.pool,
                          .is_small = range.is_small,
                          .is_expandable = range.is_expandable});
    }
  }
  return segments;
}

std::vector<SegmentAt> Timeline::segments_at(const Moment& moment) const {
  const std::vector<std::uint64_t>& blocks = block_bytes();
  std::vector<SegmentAt> segments = empty_segments_after(moment.event);
  std::vector<std::uint32_t> live = moment.live;
  std::ranges::sort(live, {}, [&](std::uint32_t i) { return allocations_[i].address; });
  auto next = live.begin();
  for (SegmentAt& segment : segments) {
    const Address end = segment.address + segment.bytes;
    Address at = segment.address;
    while (next != live.end() && allocations_[*next].address < segment.address) ++next;
    for (; next != live.end() && allocations_[*next].address < end; ++next) {
      const Address address = allocations_[*next].address;
      if (address < at) continue;  // blocks that overlap: the file is damaged
      if (!segment.live.empty()) {
        add_gap(segment, address - at, allocations_[segment.live.back().allocation].bytes, options_);
      } else {
        add_free(segment, address - at);
      }
      const std::uint64_t bytes = std::min(blocks[*next], end - address);
      segment.live.push_back({.allocation = *next, .bytes = bytes});
      segment.live_bytes += bytes;
      at = address + bytes;
    }
    if (segment.live.empty()) {
      add_free(segment, segment.bytes);
    } else {
      add_gap(segment, end - at, allocations_[segment.live.back().allocation].bytes, options_);
    }
  }
  return segments;
}

std::vector<SegmentAt> Timeline::segments_as_written(const Moment& moment) const {
  AddressMap live;
  for (const std::uint32_t i : moment.live) live.set(allocations_[i].address, i);
  std::vector<SegmentAt> segments;
  for (const HistorySegment& one : device_->segments) {
    SegmentAt& segment = segments.emplace_back();
    segment.address = one.address;
    segment.bytes = one.bytes;
    segment.stream = one.stream;
    segment.pool = one.pool;
    segment.is_small = one.is_small;
    segment.is_expandable = one.is_expandable;
    for (const HistoryBlock& block : device_->blocks_of(one)) {
      const std::uint32_t allocation = live.find(block.address);
      if (block.state == HistoryBlock::State::allocated && allocation != AddressMap::kNone) {
        segment.live.push_back({.allocation = allocation, .bytes = block.bytes});
        segment.live_bytes += block.bytes;
      }
      if (block.state != HistoryBlock::State::free) continue;
      ++segment.free_pieces;
      segment.free_bytes += block.bytes;
      segment.largest_free_bytes = std::max(segment.largest_free_bytes, block.bytes);
    }
  }
  return segments;
}

void Timeline::leave_out_asleep(Moment& moment) const {
  if (device_->asleep.empty()) return;
  std::map<Address, Address> asleep;  // ends by begins
  for (const HistorySegment& segment : device_->asleep) asleep[segment.address] = segment.address + segment.bytes;
  std::erase_if(moment.live, [&](std::uint32_t i) {
    const auto behind = asleep.upper_bound(allocations_[i].address);
    if (behind == asleep.begin() || std::prev(behind)->second <= allocations_[i].address) return false;
    const std::uint64_t block = block_bytes()[i];
    subtract(moment.held.requested, allocations_[i].bytes);
    subtract(moment.held.allocated, block);
    subtract(moment.held.active, block);
    return true;
  });
}

Timelines::Timelines(History history) : history_(std::make_unique<const History>(std::move(history))) {
  timelines_.reserve(history_->devices.size() + history_->host.size());
  for (const auto* devices : {&history_->devices, &history_->host}) {
    for (const DeviceHistory& device : *devices) timelines_.emplace_back(*history_, device);
  }
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

constexpr std::string_view kAnnotated = "cachalot:";
constexpr std::string_view kModule = "cachalot:module ";

bool is_wanted(std::string_view name, Stages::Of of) {
  if (of == Stages::Of::everything) return true;
  return of == Stages::Of::modules ? name.starts_with(kModule) : !name.starts_with(kAnnotated);
}

std::string name_of_stages(const History& history, const std::vector<TextId>& open) {
  std::string name;
  for (const TextId text : open) name += (name.empty() ? "" : " > ") + std::string(history.texts[text]);
  return name.substr(0, kLongestStageName);
}

std::string name_of_module(const History& history, const std::vector<TextId>& open) {
  if (open.empty()) return "";
  return std::string(history.texts[open.back()].substr(kModule.size())).substr(0, kLongestStageName);
}

}  // namespace

Stages::Stages(const History& history, const DeviceHistory& device, Of of) {
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
    names_.push_back(of == Of::modules ? name_of_module(history, open) : name_of_stages(history, open));
  };
  by_event_.reserve(device.events.size());
  auto mark = history.stages.begin();
  for (const HistoryEvent& event : device.events) {
    // In one microsecond, what begins comes before the event, and what ends after it.
    for (; mark != history.stages.end() &&
           (mark->time_us < event.time_us || (mark->time_us == event.time_us && mark->begins));
         ++mark) {
      if (mark->device != device.device || !is_wanted(history.texts[mark->name], of)) continue;
      follow(*mark, open);
      enter();
    }
    by_event_.push_back(stage);
  }
}

}  // namespace cachalot::tools
