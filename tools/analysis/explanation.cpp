#include "tools/analysis/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "tools/analysis/message_report.h"
#include "tools/analysis/oom_figures.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

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

std::string pieces_text(const Cached& cached) {
  if (cached.pieces == 0) return format_bytes(cached.bytes);
  return fmt::format("{} in {} piece{} of at most {}", format_bytes(cached.bytes), cached.pieces,
                     cached.pieces == 1 ? "" : "s", format_bytes(cached.largest_bytes));
}

std::string pinned_by(const Explanation& one) {
  if (one.pins.empty()) return "";
  const Pin& first = one.pins.front();
  if (first.at.empty()) return "";
  return fmt::format("; most of it lies beside {} ({}) of {}", format_count(first.blocks, "block"),
                     format_bytes(first.block_bytes), first.at);
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
          format_bytes(evidence.leaked_bytes), format_bytes(one.growths.front().bytes),
          one.growths.front().allocations.size(), one.growths.front().at);
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

// A remedy that a replay proves comes before one that the cause suggests.
void add_recommendation(Explanation& one) {
  const std::vector<Remedy>& best = one.remedies.best;
  if (!best.empty() && one.evidence.failure && (best.front().serves || !one.process)) {
    one.recommendation = fmt::format("{}: {}", best.front().setting, best.front().text);
  } else if (one.process && one.cause != Cause::none) {
    one.recommendation = recommendation_of(one.cause, one.evidence, *one.process);
  }
}

// Finds the moment of the report: the failure, the end before one that the file does not have, or the peak.
void add_moment(Explanation& one, const Timeline& timeline, Sites& sites, const ExplainOptions& options) {
  const bool is_pinned = options.message && options.message->says == OomMessage::Says::pinned;
  one.evidence.failure = failure_of(timeline, options);
  const MomentKind kind = timeline.last_oom()                 ? MomentKind::out_of_memory
                          : one.evidence.failure || is_pinned ? MomentKind::end
                                                              : MomentKind::allocated_peak;
  one.peak = *timeline.moment(kind);
  timeline.leave_out_asleep(one.peak);
  one.earlier_bytes = timeline.earlier_bytes();
  one.peak_reserved_bytes = timeline.most_held().reserved;
  if (timeline.events().empty()) return;
  const HistoryEvent& last = timeline.events()[one.peak.event == 0 ? 0 : one.peak.event - 1];
  if (last.stack != 0) one.at = sites.text_of(sites.place_of(last.stack, options.frames));
  one.since_begin_us = last.time_us - timeline.events().front().time_us;
}

// Adds the figures that decide the cause, and their lines of the program.
void add_evidence(Explanation& one, const Timeline& timeline, std::span<const Category> categories,
                  std::span<const BlockOwner> owners, Sites& sites, const ExplainOptions& options) {
  Evidence& evidence = one.evidence;
  evidence.reserved_bytes = one.peak.held.reserved;
  evidence.most_reserved_bytes = one.peak_reserved_bytes;
  evidence.allocated_bytes = one.peak.held.allocated;
  evidence.uses_nccl = uses_nccl(timeline.history());
  add_outside(evidence, timeline.facts(), options);
  const bool is_told = timeline.told() != nullptr;
  const std::vector<SegmentAt> segments =
      is_told ? timeline.segments_as_written(one.peak) : timeline.segments_at(one.peak);
  add_withheld(evidence, segments, timeline);
  one.pins = pins_of(segments, timeline, owners, sites, kMostPins);
  one.growths = growth_until(timeline, categories, one.peak, sites);
  for (const Growth& growth : one.growths) evidence.leaked_bytes += growth.bytes;
  add_told(evidence, timeline);
  add_unknown_outside(evidence);
}

}  // namespace

Explanation explain(const Timeline& timeline, const CategoryRules& rules, const ExplainOptions& options) {
  const History& history = timeline.history();
  Explanation one;
  one.device = timeline.device().device;
  one.is_host = options.is_host;
  one.events = timeline.events().size();
  Sites sites(history);
  add_moment(one, timeline, sites, options);

  Categorizer categorizer(history, rules);
  const std::vector<Category> categories = categorizer.categories_of(timeline);
  const std::vector<BlockOwner> owners = owners_of(timeline);
  one.shares =
      shares_of(timeline, told_categories(history, owners, categories), categorizer, one.peak, sites, options.frames);
  one.temporaries = temporaries_of(timeline.allocations(), sites, kMostTemporaries);
  if (options.has_tree) one.tree = tree_of(timeline, one.peak, sites, options.frames);
  if (options.is_host) return one;

  add_evidence(one, timeline, categories, owners, sites, options);
  one.cause = cause_of(one.evidence);
  one.process = failing_process_of(timeline, one.evidence, one.peak.live, owners);
  one.text = sentence_of(one);
  if (options.replays) one.remedies = find_remedies(timeline, one.evidence, one.cause, one.growths);
  add_recommendation(one);
  return one;
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
