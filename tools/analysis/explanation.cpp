#include "tools/analysis/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/analysis/facts.h"
#include "tools/analysis/layout.h"
#include "tools/analysis/policy_settings.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kMostPins = 5;
constexpr std::size_t kMostTemporaries = 10;

bool is_nccl_code(std::string_view file) { return file.find("/torch/distributed/") != std::string_view::npos; }

// Whether the program allocated in code of torch.distributed.
bool uses_nccl(const History& history) {
  for (FrameId frame = 0; frame < history.stacks.frame_count(); ++frame) {
    if (is_nccl_code(history.texts[history.stacks.frame(frame).file])) return true;
  }
  return false;
}

// What the file and the message tell of the device, beside PyTorch's memory.
void add_outside(Evidence& evidence, const DeviceFacts* facts, const ExplainOptions& options) {
  evidence.total_bytes = options.total_bytes;
  if (options.message) {
    evidence.is_of_pinned_memory = options.message->is_of_pinned_memory;
    evidence.is_of_nccl = options.message->is_of_nccl;
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

// Where the total is known and the processes are not, what neither PyTorch has nor is free belongs to somebody else.
void add_unknown_outside(Evidence& evidence) {
  if (!evidence.failure || !evidence.total_bytes || evidence.own_outside_bytes || evidence.other_process_bytes) return;
  const std::uint64_t known = evidence.reserved_bytes + evidence.failure->device_free_bytes.value_or(0);
  if (*evidence.total_bytes <= known) return;
  auto& outside = evidence.uses_nccl ? evidence.own_outside_bytes : evidence.other_process_bytes;
  outside = *evidence.total_bytes - known;
}

std::optional<Failure> failure_of(const DeviceHistory& device, const ExplainOptions& options) {
  if (const auto oom = last_oom(device)) {
    const HistoryEvent& event = device.events[*oom];
    return Failure{
        .requested_bytes = event.bytes, .device_free_bytes = event.address, .stream = event.stream, .pool = event.pool};
  }
  if (!options.message || !options.message->requested_bytes || options.message->device != device.device)
    return std::nullopt;
  return Failure{.requested_bytes = *options.message->requested_bytes,
                 .device_free_bytes = options.message->free_bytes,
                 .stream = 0,
                 .pool = 0};
}

std::vector<TreeLine> tree_of(const History& history, std::span<const Allocation> allocations, const Peak& peak,
                              Sites& sites, Frames frames) {
  constexpr std::uint64_t kSmallestPart = 50;  // of all: 2 %
  StackTree tree(history, sites, frames);
  for (const std::uint32_t i : peak.live)
    tree.add(sites.telling_stack(allocations[i].stack, allocations[i].details), allocations[i].bytes);
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

std::string place_text(StackId stack, Sites& sites, Frames frames) {
  return stack == 0 ? "" : sites.text_of(sites.place_of(stack, frames));
}

// Says where the moment of the report is.
void add_place(Explanation& explanation, const DeviceHistory& device, Sites& sites, Frames frames) {
  if (device.events.empty()) return;
  const HistoryEvent& last = device.events[explanation.peak.event == 0 ? 0 : explanation.peak.event - 1];
  explanation.at = place_text(last.stack, sites, frames);
  explanation.since_begin_us = last.time_us - device.events.front().time_us;
}

}  // namespace

Explanation explain(const History& history, DeviceHistory& device, const CategoryRules& rules,
                    const ExplainOptions& options) {
  Explanation explanation;
  explanation.device = device.device;
  explanation.is_host = options.is_host;
  explanation.events = device.events.size();
  std::vector<Allocation> allocations = allocations_of(device);
  const std::vector<std::uint64_t> blocks = block_bytes_of(device, allocations);
  Evidence& evidence = explanation.evidence;
  evidence.failure = failure_of(device, options);
  const bool is_pinned = options.message && options.message->is_of_pinned_memory;
  const PeakKind kind = last_oom(device)                ? PeakKind::out_of_memory
                        : evidence.failure || is_pinned ? PeakKind::end
                                                        : PeakKind::allocated_peak;
  explanation.peak = *find_peak(device, allocations, blocks, kind);
  const Peak& peak = explanation.peak;
  explanation.peak_reserved_bytes = find_peak(device, allocations, blocks, PeakKind::reserved_peak)->held.reserved;
  evidence.reserved_bytes = peak.held.reserved;
  evidence.most_reserved_bytes = explanation.peak_reserved_bytes;
  evidence.allocated_bytes = peak.held.allocated;

  Sites sites(history);
  const Stages stages(history, device);
  Categorizer categorizer(history, rules);
  const std::vector<Category> categories = categorizer.categories_of(device, allocations);
  explanation.shares = shares_of(history, allocations, categories, categorizer, peak, stages, sites, options.frames);
  explanation.temporaries = temporaries_of(allocations, sites, kMostTemporaries);
  if (options.has_tree) explanation.tree = tree_of(history, allocations, peak, sites, options.frames);
  add_place(explanation, device, sites, options.frames);

  if (options.is_host) return explanation;
  const Options policy = segment_options(history.settings);
  const std::vector<SegmentAt> segments = layout_at(device, allocations, blocks, peak, policy);
  add_withheld(evidence, segments, allocations, graph_pools_of(history, allocations), policy);
  for (const Pin& pin : pins_of(segments, allocations, sites, kMostPins))
    explanation.pins.push_back({.at = pin.place ? sites.text_of(*pin.place) : "", .pin = pin});
  const std::vector<Growth> growths = growth_until(device, allocations, categories, peak, sites);
  for (const Growth& growth : growths) {
    evidence.leaked_bytes += growth.bytes;
    explanation.growths.push_back(
        {.at = sites.text_of(growth.place), .bytes = growth.bytes, .allocations = growth.allocations.size()});
  }
  evidence.uses_nccl = uses_nccl(history);
  add_outside(evidence, find_facts(history, device.device), options);
  add_unknown_outside(evidence);
  explanation.cause = cause_of(evidence);
  explanation.text = sentence_of(explanation);
  if (options.replays)
    explanation.remedies = find_remedies(history, device, evidence, explanation.cause, growths, allocations, sites);
  return explanation;
}

std::string name_of(const Explanation& explanation) {
  return explanation.is_host ? "pinned host memory" : fmt::format("device {}", explanation.device);
}

Explanation explain_message(const History& history, const ExplainOptions& options) {
  const OomMessage& message = *options.message;
  Explanation explanation;
  explanation.device = message.device;
  Evidence& evidence = explanation.evidence;
  const std::uint64_t cached = message.unallocated_bytes.value_or(0) + message.private_bytes.value_or(0);
  evidence.allocated_bytes = message.allocated_bytes.value_or(0) -
                             std::min(message.allocated_bytes.value_or(0), message.private_bytes.value_or(0));
  evidence.reserved_bytes = evidence.allocated_bytes + cached;
  evidence.of(Cause::fragmentation).bytes = message.unallocated_bytes.value_or(0);
  evidence.of(Cause::private_pool).bytes = message.private_bytes.value_or(0);
  if (message.requested_bytes)
    evidence.failure = Failure{.requested_bytes = *message.requested_bytes, .device_free_bytes = message.free_bytes};
  add_outside(evidence, find_facts(history, message.device), options);
  explanation.peak.held = {.requested = evidence.allocated_bytes,
                           .allocated = evidence.allocated_bytes,
                           .active = evidence.allocated_bytes,
                           .reserved = evidence.reserved_bytes};
  explanation.peak.kind = PeakKind::out_of_memory;
  explanation.cause = cause_of(evidence);
  explanation.text = sentence_of(explanation);
  return explanation;
}

}  // namespace cachalot::tools
