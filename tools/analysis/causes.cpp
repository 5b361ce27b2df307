#include "tools/analysis/causes.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "policy/torch_policy.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kFewestKept = 4;   // allocations of a line that outlived backward passes
constexpr std::size_t kFewestSteps = 4;  // of a loop
constexpr std::size_t kParts = 4;        // of the history: a line that grows allocates in three of them at least

// Returns the events of the allocations outside of all phases whose stack made, and freed, most of them: a loop's steps.
std::vector<std::uint32_t> steps_of(std::span<const Allocation> allocations, std::span<const Category> categories,
                                    const Moment& moment) {
  std::map<StackId, std::vector<std::uint32_t>> by_stack;
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& one = allocations[i];
    const bool is_outside = categories[i] == Category::unknown || categories[i] == Category::activations;
    if (is_outside && one.stack != 0 && one.begin != Allocation::kBefore && one.end < moment.event)
      by_stack[one.stack].push_back(one.begin);
  }
  const auto most = std::ranges::max_element(by_stack, {}, [](const auto& stack) { return stack.second.size(); });
  return most == by_stack.end() || most->second.size() < kFewestSteps ? std::vector<std::uint32_t>() : most->second;
}

// Returns whether the allocations lie in most parts of the history.
bool is_throughout(const Growth& growth, std::span<const Allocation> allocations, const Moment& moment) {
  std::array<bool, kParts> parts = {};
  for (const std::uint32_t i : growth.allocations)
    parts[allocations[i].begin * kParts / std::max<std::size_t>(1, moment.event)] = true;
  return std::ranges::count(parts, true) >= static_cast<std::ptrdiff_t>(kParts - 1);
}

class GrowthSearch {
 public:
  GrowthSearch(std::span<const Allocation> allocations, std::span<const Category> categories, const Moment& moment)
      : allocations_(allocations),
        categories_(categories),
        moment_(moment),
        steps_(steps_of(allocations, categories, moment)) {
    is_training_ = std::ranges::find(categories, Category::gradients) != categories.end();
  }

  // Returns whether the memory may be a leak: a training's activations are freed by its next backward pass.
  bool may_grow(std::uint32_t allocation) const {
    const Category category = categories_[allocation];
    if (category == Category::activations) return !is_training_;
    return category == Category::kept || category == Category::unknown;
  }

  bool grows(const Growth& growth) const {
    if (growth.allocations.size() < kFewestKept || !is_throughout(growth, allocations_, moment_)) return false;
    const Category category = categories_[growth.allocations.front()];
    return category == Category::kept || steps_of_growth(growth) >= kFewestSteps;
  }

 private:
  // In how many steps the allocations were made.
  std::size_t steps_of_growth(const Growth& growth) const {
    std::set<std::ptrdiff_t> steps;
    for (const std::uint32_t i : growth.allocations)
      steps.insert(std::ranges::upper_bound(steps_, allocations_[i].begin) - steps_.begin());
    return steps.size();
  }

  std::span<const Allocation> allocations_;
  std::span<const Category> categories_;
  const Moment& moment_;
  std::vector<std::uint32_t> steps_;
  bool is_training_ = false;
};

}  // namespace

std::vector<Growth> growth_until(const Timeline& timeline, std::span<const Category> categories, const Moment& moment,
                                 Sites& sites) {
  std::vector<Growth> found;
  if (timeline.events().empty()) return found;
  const std::vector<Allocation>& allocations = timeline.allocations();
  const GrowthSearch search(allocations, categories, moment);
  std::map<std::pair<FrameId, Category>, Growth> by_place;
  for (const std::uint32_t i : moment.live) {
    const Allocation& one = allocations[i];
    if (!search.may_grow(i) || one.stack == 0 || one.begin == Allocation::kBefore) continue;
    Growth& growth = by_place[{sites.place_of(sites.telling_stack(one.stack, one.details)), categories[i]}];
    growth.bytes += one.bytes;
    growth.allocations.push_back(i);
  }
  for (auto& [key, growth] : by_place) {
    if (!search.grows(growth)) continue;
    growth.at = sites.text_of(key.first);
    found.push_back(std::move(growth));
  }
  std::ranges::stable_sort(found, std::greater<>{}, &Growth::bytes);
  return found;
}

namespace {

constexpr std::array<std::string_view, kCauseCount> kKeys = {
    "fragmentation",      "other_stream", "private_pool", "graph_pools", "oversize_blocks",
    "cached_by_rounding", "waiting",      "asleep",       "limit",       "leak",
    "other_process",      "nccl",         "pinned",       "too_large",   "wrong_shape",
    "host_memory",        "driver",       "outside",      "unknown",     "none"};

// A private pool keeps even a segment in which nothing lives.
Cause kind_of(const SegmentAt& segment, const Failure& failure, const std::vector<bool>& graph_pools) {
  const bool is_idle = segment.pool != 0 && segment.live.empty();
  if (segment.pool != failure.pool || is_idle)
    return graph_pools[segment.pool] ? Cause::graph_pools : Cause::private_pool;
  return segment.stream != failure.stream ? Cause::other_stream : Cause::fragmentation;
}

void add(Cached& cached, std::uint64_t bytes, std::uint64_t largest, std::size_t pieces) {
  if (bytes == 0) return;
  cached.bytes += bytes;
  cached.largest_bytes = std::max(cached.largest_bytes, largest);
  cached.pieces += pieces;
  ++cached.segments;
}

// Returns whether a limit failed the request: the device had memory for it.
bool is_limited(const Evidence& evidence) {
  const Failure& failure = *evidence.failure;
  const std::uint64_t rounded = round_to_block(std::max<std::uint64_t>(1, failure.requested_bytes));
  const std::uint64_t segment = std::max<std::uint64_t>(segment_size(rounded, kLargeBuffer), rounded);
  if (failure.device_free_bytes && *failure.device_free_bytes >= segment) return true;
  return evidence.limit_bytes && evidence.total_bytes && *evidence.limit_bytes < *evidence.total_bytes &&
         evidence.reserved_bytes + failure.requested_bytes > *evidence.limit_bytes &&
         failure.device_free_bytes.value_or(0) >= failure.requested_bytes;
}

}  // namespace

// Returns the program's memory and the device's free memory, or the limit. An unknown limit counts as the most that the
// program ever had.
std::uint64_t available_bytes(const Evidence& evidence) {
  const std::uint64_t of_device = evidence.reserved_bytes + evidence.failure->device_free_bytes.value_or(0);
  if (!is_limited(evidence) && !evidence.limit_bytes) return of_device;
  const std::uint64_t limit =
      std::max(evidence.limit_bytes.value_or(evidence.most_reserved_bytes), evidence.reserved_bytes);
  return is_limited(evidence) ? limit : std::min(limit, of_device);
}

namespace {

// Returns whether `bytes` more would have served the request.
bool would_serve(const Evidence& evidence, std::uint64_t bytes) {
  const std::uint64_t needed = evidence.failure->requested_bytes;
  const double worth = kWorthNaming * static_cast<double>(evidence.reserved_bytes);
  return bytes > 0 && static_cast<double>(bytes) >= worth &&
         bytes + available_bytes(evidence) - evidence.reserved_bytes >= needed;
}

std::uint64_t withheld_bytes(const Evidence& evidence) {
  std::uint64_t bytes = 0;
  for (const Cached& cached : evidence.withheld) bytes += cached.bytes;
  return bytes;
}

// The largest of what the allocator itself withheld.
std::optional<Cause> cached_cause(const Evidence& evidence) {
  std::optional<Cause> largest;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(Cause::cached_by_rounding); ++i) {
    const auto cause = static_cast<Cause>(i);
    if (!largest || evidence.of(cause).bytes > evidence.of(*largest).bytes) largest = cause;
  }
  return would_serve(evidence, withheld_bytes(evidence)) ? largest : std::nullopt;
}

// The larger of a leak and of what others hold of the device.
std::optional<Cause> largest_holder(const Evidence& evidence) {
  std::optional<Cause> cause;
  std::uint64_t most = 0;
  const auto consider = [&](Cause one, std::uint64_t bytes) {
    if (bytes <= most || !would_serve(evidence, bytes)) return;
    most = bytes;
    cause = one;
  };
  consider(Cause::leak, evidence.leaked_bytes);
  consider(Cause::other_process, evidence.other_process_bytes.value_or(0));
  const std::uint64_t own = evidence.own_outside_bytes.value_or(0);
  if (evidence.nccl_bytes) {
    consider(Cause::nccl, *evidence.nccl_bytes);
  } else if (evidence.uses_nccl || is_more_than_context(own, evidence.reserved_bytes)) {
    consider(Cause::nccl, own);
  }
  return cause;
}

}  // namespace

std::string_view key_of(Cause cause) { return kKeys[static_cast<std::size_t>(cause)]; }

void add_withheld(Evidence& evidence, std::span<const SegmentAt> segments, const Timeline& timeline) {
  const std::vector<bool> graph_pools = graph_pools_of(timeline);
  const Failure failure = evidence.failure.value_or(Failure{});
  for (const SegmentAt& segment : segments) {
    add(evidence.of(kind_of(segment, failure, graph_pools)), segment.free_bytes, segment.largest_free_bytes,
        segment.free_pieces);
    for (const LiveBlock& block : segment.live) {
      const std::uint64_t needed =
          round_to_block(std::max<std::uint64_t>(1, timeline.allocations()[block.allocation].bytes));
      if (block.bytes <= needed) continue;
      const Cause cause =
          is_oversize(block.bytes, timeline.options()) ? Cause::oversize_blocks : Cause::cached_by_rounding;
      add(evidence.of(cause), block.bytes - needed, block.bytes - needed, 1);
    }
  }
}

std::vector<bool> graph_pools_of(const Timeline& timeline) {
  const History& history = timeline.history();
  std::vector<bool> graphs;
  graphs.reserve(history.pools.size());
  for (std::size_t i = 0; i < history.pools.size(); ++i)
    graphs.push_back(history.pools[i].first != 0 && history.pools[i].second == 0);  // PyTorch's own numbers
  std::set<std::pair<std::uint16_t, StackId>> seen;
  for (const Allocation& one : timeline.allocations()) {
    if (one.pool == 0 || one.stack == 0 || graphs[one.pool] || !seen.emplace(one.pool, one.stack).second) continue;
    graphs[one.pool] = std::ranges::any_of(history.stacks[one.stack], [&](FrameId frame) {
      const std::string_view file = history.texts[history.stacks.frame(frame).file];
      return file.ends_with("cudagraph_trees.py") || file.ends_with("/torch/cuda/graphs.py");
    });
  }
  return graphs;
}

std::vector<Pin> pins_of(std::span<const SegmentAt> segments, const Timeline& timeline,
                         std::span<const BlockOwner> owners, Sites& sites, std::size_t most) {
  using Place = std::pair<std::optional<FrameId>, TextId>;  // or an owner
  std::map<Place, Pin> by_place;
  for (const SegmentAt& segment : segments) {
    if (segment.free_bytes == 0 || segment.live_bytes == 0) continue;
    std::set<Place> places;
    for (const LiveBlock& block : segment.live) {
      const Allocation& one = timeline.allocations()[block.allocation];
      const StackId stack = sites.telling_stack(one.stack, one.details);
      Place place(stack == 0 ? std::nullopt : std::optional(sites.place_of(stack)), 0);
      if (stack == 0 && !owners.empty()) place.second = owners[block.allocation].name;
      Pin& pin = by_place[place];
      pin.free_bytes +=
          static_cast<std::uint64_t>(static_cast<double>(segment.free_bytes) * static_cast<double>(block.bytes) /
                                     static_cast<double>(segment.live_bytes));
      pin.block_bytes += block.bytes;
      ++pin.blocks;
      if (places.insert(place).second) ++pin.segments;
    }
  }
  std::vector<Pin> pins;
  pins.reserve(by_place.size());
  for (auto& [place, pin] : by_place) {
    pin.at = place.first ? sites.text_of(*place.first) : std::string(timeline.history().texts[place.second]);
    pins.push_back(std::move(pin));
  }
  std::ranges::stable_sort(pins, std::greater<>{}, &Pin::free_bytes);
  if (pins.size() > most) pins.resize(most);
  return pins;
}

Cause cause_of(const Evidence& evidence) {
  if (evidence.said) return *evidence.said;
  if (!evidence.failure) return Cause::none;
  if (evidence.is_asleep) return Cause::asleep;
  if (evidence.is_refused) return Cause::limit;
  if (const auto cause = cached_cause(evidence)) return *cause;
  if (would_serve(evidence, withheld_bytes(evidence) + evidence.waiting_bytes) && evidence.waiting_bytes > 0)
    return Cause::waiting;
  if (is_limited(evidence)) return evidence.is_known_without_limit ? Cause::driver : Cause::limit;
  return largest_holder(evidence).value_or(Cause::too_large);
}

}  // namespace cachalot::tools
