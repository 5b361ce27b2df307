#include "tools/analysis/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "tools/analysis/message_report.h"
#include "tools/analysis/oom_figures.h"
#include "tools/analysis/program_settings.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

// Sums by a number, which has its name only once.
template <typename Key>
class Sums {
 public:
  void add(Key key, std::uint64_t bytes) {
    Share& share = sums_[key];
    share.bytes += bytes;
    ++share.count;
  }

  template <typename NameOf>
  std::vector<Share> largest_first(NameOf name_of) {
    std::map<std::string, Share> by_name;
    for (const auto& [key, share] : sums_) {
      Share& named = by_name[name_of(key)];
      named.bytes += share.bytes;
      named.count += share.count;
    }
    std::vector<Share> shares;
    shares.reserve(by_name.size());
    for (auto& [name, share] : by_name) shares.push_back({.name = name, .bytes = share.bytes, .count = share.count});
    std::ranges::stable_sort(shares, std::greater<>{}, &Share::bytes);
    return shares;
  }

 private:
  std::map<Key, Share> sums_;
};

std::string pool_text(PoolId pool) {
  return pool == PoolId{} ? "default" : fmt::format("({}, {})", pool.first, pool.second);
}

constexpr StageId kEarlier = std::numeric_limits<StageId>::max();

Shares shares_of(const Timeline& timeline, std::span<const Category> categories, const Categorizer& names,
                 const Moment& peak, Sites& sites, Frames frames) {
  const History& history = timeline.history();
  const Stages stages(history, timeline.device(), Stages::Of::user);
  const Stages modules(history, timeline.device(), Stages::Of::modules);
  Sums<Category> by_category;
  Sums<StackId> by_stack;
  Sums<std::uint16_t> by_pool;
  Sums<std::uint16_t> by_stream;
  Sums<StageId> by_stage;
  Sums<StageId> by_module;
  for (const std::uint32_t i : peak.live) {
    const Allocation& one = timeline.allocations()[i];
    by_category.add(categories[i], one.bytes);
    by_stack.add(sites.telling_stack(one.stack, one.details), one.bytes);
    by_pool.add(one.pool, one.bytes);
    by_stream.add(one.stream, one.bytes);
    const bool is_earlier = one.begin == Allocation::kBefore;
    by_stage.add(!is_earlier ? stages.at(one.begin) : stages.size() > 1 ? kEarlier : 0, one.bytes);
    by_module.add(is_earlier ? 0 : modules.at(one.begin), one.bytes);
  }
  Shares shares;
  shares.categories =
      by_category.largest_first([&](Category category) { return std::string(names.name_of(category)); });
  shares.modules = modules.size() > 1 ? by_module.largest_first([&](StageId module) { return modules.name(module); })
                                      : by_stack.largest_first([&](StackId stack) { return sites.module_of(stack); });
  shares.lines = by_stack.largest_first(
      [&](StackId stack) { return stack == 0 ? std::string() : sites.text_of(sites.place_of(stack, frames)); });
  shares.pools = by_pool.largest_first([&](std::uint16_t pool) { return pool_text(history.pools[pool]); });
  shares.streams =
      by_stream.largest_first([&](std::uint16_t stream) { return fmt::format("{:#x}", history.streams[stream]); });
  shares.stages = by_stage.largest_first(
      [&](StageId stage) { return stage == kEarlier ? std::string("(before the history)") : stages.name(stage); });
  return shares;
}

constexpr std::uint64_t kFewestTemporaries = 10;

// Returns the lines with most bytes allocated in temporaries of one size, at least kFewestTemporaries each.
std::vector<Temporary> temporaries_of(std::span<const Allocation> allocations, Sites& sites, std::size_t most) {
  constexpr std::uint32_t kShort = 16;  // events from its begin to its end: freed before the next few
  struct Found {
    std::uint64_t count = 0;
    std::uint64_t live = 0;
    std::uint64_t most_live = 0;
    std::map<std::uint32_t, std::uint64_t> ends;  // of the live ones
  };
  std::map<std::tuple<StackId, std::uint64_t>, Found> found;  // by stack and bytes
  for (const Allocation& one : allocations) {
    const bool is_short =
        one.begin != Allocation::kBefore && one.end != Allocation::kNever && one.end - one.begin <= kShort;
    if (!is_short || one.stack == 0) continue;
    Found& site = found[{one.stack, one.bytes}];
    while (!site.ends.empty() && site.ends.begin()->first < one.begin) {
      site.live -= site.ends.begin()->second;
      site.ends.erase(site.ends.begin());
    }
    ++site.ends[one.end];
    ++site.count;
    site.most_live = std::max(site.most_live, ++site.live);
  }
  std::map<std::tuple<FrameId, std::uint64_t>, Temporary> by_place;
  for (const auto& [key, site] : found) {
    const auto& [stack, bytes] = key;
    const FrameId place = sites.place_of(stack);
    Temporary& one = by_place[{place, bytes}];
    one.bytes = bytes;
    one.count += site.count;
    one.most_live = std::max(one.most_live, site.most_live);
    if (one.at.empty()) one.at = sites.text_of(place);
  }
  std::vector<Temporary> temporaries;
  for (auto& [key, one] : by_place) {
    if (one.count >= kFewestTemporaries && one.bytes > 0) temporaries.push_back(std::move(one));
  }
  std::ranges::stable_sort(temporaries, std::greater<>{}, [](const Temporary& one) { return one.bytes * one.count; });
  if (temporaries.size() > most) temporaries.resize(most);
  return temporaries;
}

constexpr std::size_t kMostPins = 5;
constexpr std::size_t kMostTemporaries = 10;

// Returns whether the program allocated in code of torch.distributed.
bool uses_nccl(const History& history) {
  for (FrameId frame = 0; frame < history.stacks.frame_count(); ++frame) {
    if (history.texts[history.stacks.frame(frame).file].find("/torch/distributed/") != std::string_view::npos)
      return true;
  }
  return false;
}

// Adds the figures of the device that the file and the message have, beside PyTorch's memory.
void add_outside(Evidence& evidence, const DeviceFacts* facts, const ExplainOptions& options) {
  evidence.total_bytes = options.total_bytes;
  if (options.message && options.message->says != OomMessage::Says::nothing) {
    // A history has no data on these causes; it has limits of its own.
    const Cause said = verdict_of(*options.message).cause;
    if (said == Cause::pinned || said == Cause::nccl || (said == Cause::outside && !evidence.failure) ||
        said == Cause::host_memory)
      evidence.said = said;
  }
  if (options.message && options.message->is_of_torch && options.message->says == OomMessage::Says::nothing) {
    const bool has_limit = options.message->allowed_bytes || (facts != nullptr && facts->limit_bytes);
    evidence.is_known_without_limit = !has_limit && !options.message->is_cut && options.message->reserved_bytes;
  }
  if (facts == nullptr) return;
  if (!evidence.total_bytes) evidence.total_bytes = facts->total_bytes;
  evidence.limit_bytes = facts->limit_bytes;
  evidence.nccl_bytes = facts->nccl_bytes;
  if (facts->process_bytes && *facts->process_bytes > evidence.reserved_bytes)
    evidence.own_outside_bytes = *facts->process_bytes - evidence.reserved_bytes;
  std::uint64_t others = 0;
  for (const DeviceFacts::Process& process : facts->other_processes) others += process.bytes;
  if (!facts->other_processes.empty()) evidence.other_process_bytes = others;
}

// If the total is known and the processes are not, memory that is neither PyTorch's nor free belongs to another
// process.
void add_unknown_outside(Evidence& evidence) {
  if (!evidence.failure || !evidence.total_bytes || evidence.own_outside_bytes || evidence.other_process_bytes) return;
  const std::uint64_t known = evidence.reserved_bytes + evidence.failure->device_free_bytes.value_or(0);
  if (*evidence.total_bytes <= known) return;
  auto& outside = evidence.uses_nccl ? evidence.own_outside_bytes : evidence.other_process_bytes;
  outside = *evidence.total_bytes - known;
}

std::optional<Failure> failure_of(const Timeline& timeline, const ExplainOptions& options) {
  if (const auto oom = timeline.last_oom()) {
    const HistoryEvent& event = timeline.events()[*oom];
    return Failure{
        .requested_bytes = event.bytes, .device_free_bytes = event.address, .stream = event.stream, .pool = event.pool};
  }
  if (!options.message || !options.message->requested_bytes || !options.message->is_of_torch ||
      options.message->device != timeline.device().device)
    return std::nullopt;
  return Failure{.requested_bytes = *options.message->requested_bytes,
                 .device_free_bytes = options.message->free_bytes,
                 .stream = 0,
                 .pool = 0};
}

std::vector<TreeLine> tree_of(const Timeline& timeline, const Moment& peak, Sites& sites, Frames frames) {
  constexpr std::uint64_t kSmallestPart = 50;  // of all: 2 %
  StackTree tree(timeline.history(), sites, frames);
  for (const std::uint32_t i : peak.live) {
    const Allocation& one = timeline.allocations()[i];
    tree.add(sites.telling_stack(one.stack, one.details), one.bytes);
  }
  const auto children = tree.children();
  std::vector<TreeLine> lines;
  std::vector<std::pair<std::uint32_t, std::size_t>> open = {{0, 0}};
  while (!open.empty()) {
    const auto [node, depth] = open.back();
    open.pop_back();
    const StackTree::Node& one = tree.nodes()[node];
    if (node != 0)
      lines.push_back({.depth = depth - 1, .bytes = one.bytes, .count = one.count, .at = sites.text_of(one.frame)});
    for (auto child = children[node].rbegin(); child != children[node].rend(); ++child) {
      if (tree.nodes()[*child].bytes * kSmallestPart >= tree.nodes()[0].bytes) open.emplace_back(*child, depth + 1);
    }
  }
  return lines;
}

// Says where the moment of the report is.
void add_place(Explanation& explanation, const DeviceHistory& device, Sites& sites, Frames frames) {
  if (device.events.empty()) return;
  const HistoryEvent& last = device.events[explanation.peak.event == 0 ? 0 : explanation.peak.event - 1];
  if (last.stack != 0) explanation.at = sites.text_of(sites.place_of(last.stack, frames));
  explanation.since_begin_us = last.time_us - device.events.front().time_us;
}

std::string pieces_text(const Cached& cached) {
  if (cached.pieces == 0) return format_bytes(cached.bytes);
  return fmt::format("{} in {} piece{} of at most {}", format_bytes(cached.bytes), cached.pieces,
                     cached.pieces == 1 ? "" : "s", format_bytes(cached.largest_bytes));
}

std::string pinned_by(const Explanation& one) {
  if (one.pins.empty()) return "";
  const NamedPin& first = one.pins.front();
  if (first.at.empty()) return "";
  return fmt::format("; most of it lies beside {} block{} ({}) of {}", first.pin.blocks,
                     first.pin.blocks == 1 ? "" : "s", format_bytes(first.pin.block_bytes), first.at);
}

std::string holder_text(const Explanation& one) {
  const Evidence& evidence = one.evidence;
  switch (one.cause) {
    case Cause::limit:
      return fmt::format("the device had {} free, but the program may not take them: a limit was set{}",
                         format_bytes(evidence.failure->device_free_bytes.value_or(0)),
                         evidence.limit_bytes ? fmt::format(" of {}", format_bytes(*evidence.limit_bytes)) : "");
    case Cause::leak:
      return fmt::format(
          "{} of the live memory grew with the steps of the program: {} in {} allocations of {} were not freed until "
          "then",
          format_bytes(evidence.leaked_bytes), format_bytes(one.growths.front().bytes), one.growths.front().allocations,
          one.growths.front().at);
    case Cause::other_process:
      return fmt::format("other processes held {} of the device",
                         format_bytes(evidence.other_process_bytes.value_or(0)));
    case Cause::nccl:
      return evidence.own_outside_bytes || evidence.nccl_bytes
                 ? fmt::format("NCCL, the CUDA context and other libraries of this process held {} outside of PyTorch",
                               format_bytes(evidence.nccl_bytes.value_or(evidence.own_outside_bytes.value_or(0))))
                 : "NCCL found no memory for its buffers, which it takes outside of PyTorch";
    case Cause::pinned:
      return "pinned host memory ran out, not memory of the GPU; PyTorch rounds each pinned request up to a power of "
             "two";
    case Cause::driver:
      return fmt::format("the driver refused it although {} were free on the device, and no limit was set",
                         format_bytes(evidence.failure->device_free_bytes.value_or(0)));
    case Cause::host_memory:
      return "memory of the host ran out, not memory of the GPU";
    case Cause::outside:
      return "CUDA itself found no memory, outside of PyTorch's caching allocator";
    default:
      if (evidence.failure && evidence.allocated_bytes + evidence.failure->requested_bytes <= available_bytes(evidence))
        return fmt::format(
            "{} are live, and the {} that PyTorch caches besides lie in smaller pieces",
            format_bytes(evidence.allocated_bytes),
            format_bytes(evidence.reserved_bytes - std::min(evidence.reserved_bytes, evidence.allocated_bytes)));
      return fmt::format("{} of live memory and the request do not fit into the device together",
                         format_bytes(evidence.allocated_bytes));
  }
}

std::string cached_text(const Explanation& one) {
  if (std::string told = one.process ? told_sentence(one.cause, one.evidence, *one.process) : ""; !told.empty())
    return told;
  const Cached& cached = one.evidence.of(one.cause);
  switch (one.cause) {
    case Cause::fragmentation:
      return fmt::format("{} is free between live blocks{}", pieces_text(cached), pinned_by(one));
    case Cause::other_stream:
      return fmt::format("{} is free, but cached for other streams{}", pieces_text(cached), pinned_by(one));
    case Cause::private_pool:
      return fmt::format("{} is free, but cached in private pools (torch.cuda.MemPool)", pieces_text(cached));
    case Cause::graph_pools:
      return fmt::format("{} is free, but kept in the pools of CUDA graphs", pieces_text(cached));
    case Cause::oversize_blocks:
      return fmt::format("{} are the rests of blocks that max_split_size_mb keeps whole", format_bytes(cached.bytes));
    case Cause::cached_by_rounding:
      return fmt::format("{} of the live blocks were not asked for: requests are rounded up",
                         format_bytes(cached.bytes));
    default:
      return holder_text(one);
  }
}

// Returns "at its peak the program used 11.79 GiB (62.3 % activations); memory did not run out".
std::string peak_sentence(const Explanation& one) {
  const std::uint64_t used = one.peak.held.requested;
  std::string most;
  if (used > 0 && !one.shares.categories.empty() && one.shares.categories.front().name != "unknown") {
    const Share& largest = one.shares.categories.front();
    most = fmt::format(" ({} {})", percent_text(static_cast<double>(largest.bytes) / static_cast<double>(used)),
                       largest.name);
  }
  return fmt::format("at its peak the program used {}{}; memory did not run out", format_bytes(used), most);
}

// Returns the sentence for the cause: "300.00 MiB were asked for; 540.00 MiB are free in 20 pieces of at most 56.00 MiB …".
std::string sentence_of(const Explanation& one) {
  if (one.cause == Cause::none) return peak_sentence(one);
  if (!one.evidence.failure) return holder_text(one);
  return fmt::format("{} was asked for: {}", format_bytes(one.evidence.failure->requested_bytes), cached_text(one));
}

// Adds the memory that the segments of the moment withhold, and the blocks that pin free memory in them.
void add_segments(Explanation& one, const Timeline& timeline, std::span<const BlockOwner> owners, Sites& sites) {
  const History& history = timeline.history();
  const Options policy = segment_options(history.settings);
  const std::vector<SegmentAt> segments = told_of(history, one.device) != nullptr
                                              ? segments_as_written(timeline, one.peak)
                                              : timeline.segments_at(one.peak, policy);
  add_withheld(one.evidence, segments, timeline.allocations(), graph_pools_of(timeline), policy);
  for (const Pin& pin : pins_of(segments, timeline.allocations(), owners, sites, kMostPins))
    one.pins.push_back(
        {.at = pin.place ? sites.text_of(*pin.place) : std::string(history.texts[pin.owner]), .pin = pin});
}

// A remedy that a replay proves comes before one that the cause suggests.
void add_recommendation(Explanation& one) {
  const std::vector<Remedy>& best = one.remedies.best;
  if (!best.empty() && one.evidence.failure && (best.front().serves || !one.process)) {
    one.recommendation = fmt::format("{}: {}", best.front().setting, best.front().text);
  } else if (one.process && one.cause != Cause::none) {
    one.recommendation = recommendation_of(one.cause, one.evidence, *one.process);
  }
}

}  // namespace

Explanation explain(const Timeline& timeline, const CategoryRules& rules, const ExplainOptions& options) {
  const History& history = timeline.history();
  const DeviceHistory& device = timeline.device();
  Explanation explanation;
  explanation.device = device.device;
  explanation.is_host = options.is_host;
  explanation.events = device.events.size();
  const std::vector<BlockOwner> owners = owners_of(timeline);
  Evidence& evidence = explanation.evidence;
  evidence.failure = failure_of(timeline, options);
  const bool is_pinned = options.message && options.message->says == OomMessage::Says::pinned;
  const MomentKind kind = timeline.last_oom()             ? MomentKind::out_of_memory
                          : evidence.failure || is_pinned ? MomentKind::end
                                                          : MomentKind::allocated_peak;
  explanation.peak = *timeline.moment(kind);
  leave_out_asleep(explanation.peak, timeline);
  const Moment& peak = explanation.peak;
  explanation.earlier_bytes = timeline.earlier_bytes();
  explanation.peak_reserved_bytes = timeline.most_held().reserved;
  evidence.reserved_bytes = peak.held.reserved;
  evidence.most_reserved_bytes = explanation.peak_reserved_bytes;
  evidence.allocated_bytes = peak.held.allocated;

  Sites sites(history);
  Categorizer categorizer(history, rules);
  const std::vector<Category> categories = categorizer.categories_of(timeline);
  explanation.shares =
      shares_of(timeline, told_categories(history, owners, categories), categorizer, peak, sites, options.frames);
  explanation.temporaries = temporaries_of(timeline.allocations(), sites, kMostTemporaries);
  if (options.has_tree) explanation.tree = tree_of(timeline, peak, sites, options.frames);
  add_place(explanation, device, sites, options.frames);

  if (options.is_host) return explanation;
  add_segments(explanation, timeline, owners, sites);
  const std::vector<Growth> growths = growth_until(timeline, categories, peak, sites);
  for (const Growth& growth : growths) {
    evidence.leaked_bytes += growth.bytes;
    explanation.growths.push_back(
        {.at = sites.text_of(growth.place), .bytes = growth.bytes, .allocations = growth.allocations.size()});
  }
  evidence.uses_nccl = uses_nccl(history);
  add_outside(evidence, find_facts(history, device.device), options);
  add_told(evidence, timeline);
  add_unknown_outside(evidence);
  explanation.cause = cause_of(evidence);
  explanation.process = failing_process_of(timeline, evidence, peak.live, owners);
  explanation.text = sentence_of(explanation);
  if (options.replays) explanation.remedies = find_remedies(timeline, evidence, explanation.cause, growths, sites);
  add_recommendation(explanation);
  return explanation;
}

std::string name_of(const Explanation& explanation) {
  if (explanation.is_host) return "pinned host memory";
  const bool has_source = explanation.message && !explanation.message->source.empty();
  return fmt::format("device {}{}", explanation.device, has_source ? ", " + explanation.message->source : "");
}

Explanation explain_message(const OomMessage& of, std::optional<std::uint64_t> total_bytes) {
  Explanation explanation;
  OomMessage& message = explanation.message.emplace(of);
  if (!message.total_bytes) message.total_bytes = total_bytes;
  explanation.device = message.device;
  Evidence& evidence = explanation.evidence;
  evidence.allocated_bytes = live_bytes(message);
  evidence.reserved_bytes = message.reserved_bytes.value_or(0);
  evidence.of(Cause::fragmentation).bytes = message.unallocated_bytes.value_or(0);
  evidence.of(Cause::private_pool).bytes = message.private_bytes.value_or(0);
  if (message.requested_bytes)
    evidence.failure = Failure{.requested_bytes = *message.requested_bytes, .device_free_bytes = message.free_bytes};
  evidence.total_bytes = message.total_bytes;
  evidence.limit_bytes = message.allowed_bytes;
  if (own_bytes(message) && !message.other_processes.empty()) evidence.other_process_bytes = other_bytes(message);
  if (message.process_bytes && message.reserved_bytes && *message.process_bytes > *message.reserved_bytes)
    evidence.own_outside_bytes = *message.process_bytes - *message.reserved_bytes;
  evidence.unnamed_bytes = unnamed_bytes(message);
  explanation.peak.held = {.requested = evidence.allocated_bytes,
                           .allocated = evidence.allocated_bytes,
                           .active = evidence.allocated_bytes,
                           .reserved = evidence.reserved_bytes};
  explanation.peak.kind = MomentKind::out_of_memory;
  MessageVerdict verdict = verdict_of(message);
  explanation.cause = verdict.cause;
  explanation.text = std::move(verdict.text);
  return explanation;
}

}  // namespace cachalot::tools
