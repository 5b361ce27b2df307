#include "tools/analysis/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "policy/torch_policy.h"
#include "tools/analysis/program_settings.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/replay/policies.h"

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
    growth.place = key.first;
    if (search.grows(growth)) found.push_back(std::move(growth));
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

void add_withheld(Evidence& evidence, std::span<const SegmentAt> segments, std::span<const Allocation> allocations,
                  const std::vector<bool>& graph_pools, const Options& options) {
  const Failure failure = evidence.failure.value_or(Failure{});
  for (const SegmentAt& segment : segments) {
    add(evidence.of(kind_of(segment, failure, graph_pools)), segment.free_bytes, segment.largest_free_bytes,
        segment.free_pieces);
    for (const LiveBlock& block : segment.live) {
      const std::uint64_t needed = round_to_block(std::max<std::uint64_t>(1, allocations[block.allocation].bytes));
      if (block.bytes <= needed) continue;
      const Cause cause = is_oversize(block.bytes, options) ? Cause::oversize_blocks : Cause::cached_by_rounding;
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

std::vector<Pin> pins_of(std::span<const SegmentAt> segments, std::span<const Allocation> allocations,
                         std::span<const BlockOwner> owners, Sites& sites, std::size_t most) {
  using Place = std::pair<std::optional<FrameId>, TextId>;  // or an owner
  std::map<Place, Pin> by_place;
  for (const SegmentAt& segment : segments) {
    if (segment.free_bytes == 0 || segment.live_bytes == 0) continue;
    std::set<Place> places;
    for (const LiveBlock& block : segment.live) {
      const Allocation& one = allocations[block.allocation];
      const StackId stack = sites.telling_stack(one.stack, one.details);
      Place place(stack == 0 ? std::nullopt : std::optional(sites.place_of(stack)), 0);
      if (stack == 0 && !owners.empty()) place.second = owners[block.allocation].name;
      Pin& pin = by_place[place];
      std::tie(pin.place, pin.owner) = place;
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
  for (const auto& [place, pin] : by_place) pins.push_back(pin);
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

namespace {

using Action = HistoryEvent::Action;

constexpr std::size_t kMostRemedies = 3;
constexpr std::uint64_t kSmallestRoom = std::uint64_t{2} << 20;  // that can be replayed on

const Policy kExpandableSegments = {.heap = Policy::Heap::expandable_segments};

// Returns the most bytes that are held on the device, or on one with enough of them where this one is too small; nullopt where even
// that one is.
std::optional<std::uint64_t> held_bytes(const Trace& trace, const Policy& policy,
                                        std::uint64_t device_bytes = kEnoughBytes) {
  const PolicyFigures figures = *figures_of(trace, policy, device_bytes);
  if (figures.ooms == 0) return figures.peak_held_bytes;
  return device_bytes == kEnoughBytes ? std::nullopt : held_bytes(trace, policy);
}

// Returns the frees by which each allocation of the lines that grow is freed when its line allocates again.
std::multimap<std::uint32_t, std::uint32_t> frees_of(const std::vector<Growth>& growths,
                                                     std::span<const Allocation> allocations) {
  std::multimap<std::uint32_t, std::uint32_t> frees;
  for (const Growth& growth : growths) {
    for (std::size_t i = 0; i + 1 < growth.allocations.size(); ++i)
      frees.emplace(allocations[growth.allocations[i + 1]].begin, growth.allocations[i]);
  }
  return frees;
}

// Returns the numbers from 0 on: each pool, or stream, is its own.
template <typename Table>
std::vector<std::uint16_t> own_numbers(const Table& table) {
  std::vector<std::uint16_t> numbers(table.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i);
  return numbers;
}

class RemedySearch {
 public:
  RemedySearch(const Timeline& timeline, const Evidence& evidence)
      : timeline_(timeline),
        history_(timeline.history()),
        evidence_(evidence),
        start_(is_expandable(history_.settings) ? std::nullopt : recorded_start(timeline)),
        now_(policy_of_settings(history_.settings)),
        of_bytes_(start_ ? held_bytes(trace_as_recorded(), now_).value_or(0) : 0),
        trace_(trace_of(timeline, options_from(nullptr))) {  // behind the other trace, which is gone then
    if (!start_) of_bytes_ = held_bytes(trace_, now_).value_or(0);
    if (evidence.failure) available_bytes_ = tools::available_bytes(evidence);
  }

  std::uint64_t of_bytes() const { return of_bytes_; }
  std::optional<std::uint64_t> recorded_bytes_if_other() const {
    std::optional<std::uint64_t> recorded = recorded_reserved_bytes(timeline_.device());
    if (start_) recorded = start_->peak_reserved_bytes;
    return evidence_.failure || recorded == of_bytes_ ? std::nullopt : recorded;
  }

  // A program on cachalot has the page heap in place of expandable segments.
  void try_settings(const DeviceFacts::Failing* told) {
    if (told != nullptr && told->has_pages) return;
    if (told == nullptr && !is_expandable(history_.settings)) {
      consider({.key = "expandable_segments",
                .setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                .text = "PyTorch's segments grow in place, so that free memory between live blocks is rarer"},
               trace_, kExpandableSegments);
    }
    consider(
        {.key = "page_heap",
         .setting = told != nullptr ? "CACHALOT_CONF=heap:pages" : "import cachalot; cachalot.enable(\"heap:pages\")",
         .text = "cachalot's page heap maps free pages together, whatever lies between them"},
        trace_, {.options = page_config(history_.settings)});
  }

  void try_for(Cause cause, const std::vector<Growth>& growths, Sites& sites) {
    switch (cause) {
      case Cause::cached_by_rounding:
        return try_without("roundup_power2_divisions", "no_rounding", "PyTorch rounds requests to 512 bytes only");
      case Cause::oversize_blocks:
        return try_without("max_split_size_mb", "no_max_split_size", "PyTorch splits blocks of all sizes");
      case Cause::private_pool:
        return try_pools("no_private_pool",
                         "leave torch.cuda.use_mem_pool(...) out, or torch.cuda.MemPool(use_on_oom=True)",
                         "memory of the private pool serves all requests", [](std::uint16_t) { return true; });
      case Cause::graph_pools:
        return try_graph_pools(graph_pools_of(timeline_));
      case Cause::other_stream:
        return try_one_stream();
      case Cause::leak:
        return try_without_growth(growths, sites);
      case Cause::limit:
        return try_more_room("raise_limit", "torch.cuda.set_per_process_memory_fraction({:.2f})",
                             "the program may take more of the device",
                             evidence_.reserved_bytes + evidence_.failure->device_free_bytes.value_or(0));
      case Cause::other_process:
        return try_more_room("end_process", "end the other process, or use another GPU: CUDA_VISIBLE_DEVICES",
                             "the device's memory is this program's",
                             available_bytes_.value_or(0) + evidence_.other_process_bytes.value_or(0));
      case Cause::nccl:
        return try_more_room(
            "less_nccl", "fewer process groups, or NCCL_MAX_NCHANNELS and NCCL_BUFFSIZE smaller",
            "NCCL takes its buffers outside of PyTorch",
            available_bytes_.value_or(0) + evidence_.nccl_bytes.value_or(evidence_.own_outside_bytes.value_or(0)));
      default:
        return;
    }
  }

  std::vector<Remedy> best() {
    if (evidence_.failure) std::erase_if(found_, [](const Remedy& one) { return !one.serves; });
    if (const auto held =
            recorded_bytes_if_other())  // a replay that is not exact promises no more than the program had
      std::erase_if(found_, [&](const Remedy& one) { return one.reserved_bytes >= *held; });
    std::ranges::stable_sort(found_, {}, &Remedy::reserved_bytes);
    if (!found_.empty()) {
      std::vector<PolicyOffer> offers;
      for (const Remedy& one : found_) offers.push_back(one.offer);
      const auto choice = found_.begin() + static_cast<std::ptrdiff_t>(choose(offers));
      std::rotate(found_.begin(), choice, choice + 1);
    }
    if (found_.size() > kMostRemedies) found_.resize(kMostRemedies);
    return std::move(found_);
  }

 private:
  // Requests that failed are played. Under PyTorch's policy the program goes on from the memory that it had; another policy
  // would have had less from the start.
  TraceOptions options_from(const RecordedStart* start) const {
    TraceOptions options{.start = start};
    if (!evidence_.failure || timeline_.last_oom()) return options;
    const Failure& failure = *evidence_.failure;
    options.request = {.bytes = failure.requested_bytes, .stream = failure.stream, .pool = failure.pool};
    return options;
  }
  TraceOptions options_as_recorded() const { return options_from(start_ ? &*start_ : nullptr); }
  Trace trace_as_recorded() const { return trace_of(timeline_, options_as_recorded()); }

  // Keeps the remedy if its replay shows that it helps.
  void consider(Remedy remedy, const Trace& trace, const Policy& policy, std::uint64_t more_room = 0) {
    // With less memory the cache is given back. The page heap's steps are the smaller, the smaller the device is.
    const std::optional<std::uint64_t> held = held_bytes(trace, policy, evidence_.total_bytes.value_or(kEnoughBytes));
    if (!held) return;
    remedy.reserved_bytes = *held;
    if (available_bytes_) {
      const std::uint64_t room = std::max({more_room, *available_bytes_, kSmallestRoom});
      const PolicyFigures on_room = *figures_of(trace, policy, room);
      remedy.serves = on_room.ooms == 0 && on_room.peak_held_bytes <= room;
      if (remedy.serves) remedy.reserved_bytes = on_room.peak_held_bytes;
    }
    remedy.range = held_range(trace, policy, evidence_.total_bytes.value_or(kEnoughBytes), remedy.reserved_bytes);
    remedy.offer = offer_of(policy, {.peak_held_bytes = remedy.reserved_bytes}, now_);
    const bool is_less = static_cast<double>(remedy.reserved_bytes) <= static_cast<double>(of_bytes_) / kNearlyEqual;
    if (remedy.serves || is_less) found_.push_back(std::move(remedy));
  }

  void try_without(std::string_view setting, const char* key, const char* text) {
    if (history_.settings.find(setting) == std::string::npos) return;
    consider({.key = key, .setting = fmt::format("PYTORCH_CUDA_ALLOC_CONF without {}", setting), .text = text}, trace_,
             {.options = segment_config(history_.settings, setting)});
  }

  template <typename IsMerged>
  void try_pools(const char* key, const char* setting, const char* text, IsMerged is_merged, std::uint16_t into = 0) {
    TraceOptions merged = options_as_recorded();
    merged.follows_segments = false;
    merged.pools = own_numbers(history_.pools);
    for (std::uint16_t& pool : merged.pools) pool = is_merged(pool) ? into : pool;
    consider({.key = key, .setting = setting, .text = text}, trace_of(timeline_, merged), now_);
  }

  void try_graph_pools(const std::vector<bool>& graphs) {
    const auto first = std::ranges::find(graphs, true);
    if (first == graphs.end()) return;
    const auto into = static_cast<std::uint16_t>(first - graphs.begin());
    try_pools(
        "one_graph_pool", "pool = torch.cuda.graph_pool_handle(); torch.cuda.graph(graph, pool=pool) for all graphs",
        "graphs that do not run at the same time share memory", [&](std::uint16_t pool) { return graphs[pool]; }, into);
  }

  void try_one_stream() {
    TraceOptions merged = options_as_recorded();
    merged.follows_segments = false;
    merged.streams.assign(history_.streams.size(), 0);
    consider({.key = "one_stream",
              .setting = "allocate on one stream: torch.empty(...) before `with torch.cuda.stream(...)`",
              .text = "memory that one stream has freed serves all"},
             trace_of(timeline_, merged), now_);
  }

  void try_without_growth(const std::vector<Growth>& growths, Sites& sites) {
    if (growths.empty()) return;
    TraceOptions freed = options_from(nullptr);
    freed.follows_segments = false;
    freed.freed = frees_of(growths, timeline_.allocations());
    consider({.key = "free_leak",
              .setting = fmt::format("del what {} makes, or keep it on the CPU", sites.text_of(growths.front().place)),
              .text = "each allocation of the lines that grow is freed when the line allocates again"},
             trace_of(timeline_, freed), now_);
  }

  // Tries the policy of the program with more memory.
  void try_more_room(const char* key, const char* setting, const char* text, std::uint64_t room) {
    const double total = static_cast<double>(evidence_.total_bytes.value_or(0));
    const double fraction = total == 0 ? 1 : std::min(1.0, (static_cast<double>(of_bytes_) / total) + 0.005);
    consider({.key = key, .setting = fmt::format(fmt::runtime(setting), fraction), .text = text}, trace_as_recorded(),
             now_, room);
  }

  const Timeline& timeline_;
  const History& history_;
  const Evidence& evidence_;
  std::optional<RecordedStart> start_;  // the memory that it began with
  Policy now_;
  std::uint64_t of_bytes_;
  Trace trace_;
  std::optional<std::uint64_t> available_bytes_;
  std::vector<Remedy> found_;
};

bool has_allocations(const DeviceHistory& device) {
  return std::ranges::any_of(device.events, [](const HistoryEvent& event) { return event.action == Action::alloc; });
}

}  // namespace

Remedies find_remedies(const Timeline& timeline, const Evidence& evidence, Cause cause,
                       const std::vector<Growth>& growths, Sites& sites) {
  if (cause == Cause::pinned || !has_allocations(timeline.device())) return {};  // memory of the GPU is not what lacked
  RemedySearch search(timeline, evidence);
  search.try_settings(told_of(timeline.history(), timeline.device().device));
  search.try_for(cause, growths, sites);
  return {.of_bytes = search.of_bytes(), .recorded_bytes = search.recorded_bytes_if_other(), .best = search.best()};
}

}  // namespace cachalot::tools
