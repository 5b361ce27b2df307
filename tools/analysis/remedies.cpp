#include "tools/analysis/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "tools/analysis/program_settings.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/base/parallel.h"

namespace cachalot::tools {
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
        trace_(make_trace(options_from(nullptr))),
        recorded_(start_ ? make_trace(options_as_recorded()) : trace_) {
    if (evidence.failure) available_bytes_ = tools::available_bytes(evidence);
  }

  // A program on cachalot has the page heap in place of expandable segments.
  void add_settings(const DeviceFacts::Failing* told) {
    if (told != nullptr && told->has_pages) return;
    if (told == nullptr && !is_expandable(history_.settings)) {
      add({.key = "expandable_segments",
           .setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
           .text = "PyTorch's segments grow in place, so that free memory between live blocks is rarer"},
          trace_, kExpandableSegments);
    }
    add({.key = "page_heap",
         .setting = told != nullptr ? "CACHALOT_CONF=heap:pages" : "import cachalot; cachalot.enable(\"heap:pages\")",
         .text = "cachalot's page heap maps free pages together, whatever lies between them"},
        trace_, {.options = page_config(history_.settings)});
  }

  void add_for(Cause cause, const std::vector<Growth>& growths) {
    switch (cause) {
      case Cause::cached_by_rounding:
        return add_without("roundup_power2_divisions", "no_rounding", "PyTorch rounds requests to 512 bytes only");
      case Cause::oversize_blocks:
        return add_without("max_split_size_mb", "no_max_split_size", "PyTorch splits blocks of all sizes");
      case Cause::private_pool:
        return add_pools("no_private_pool",
                         "leave torch.cuda.use_mem_pool(...) out, or torch.cuda.MemPool(use_on_oom=True)",
                         "memory of the private pool serves all requests", [](std::uint16_t) { return true; });
      case Cause::graph_pools:
        return add_graph_pools(graph_pools_of(timeline_));
      case Cause::other_stream:
        return add_one_stream();
      case Cause::leak:
        return add_without_growth(growths);
      case Cause::limit:
        return add_raised_limit();
      case Cause::other_process:
        return add_more_room("end_process", "end the other process, or use another GPU: CUDA_VISIBLE_DEVICES",
                             "the device's memory is this program's",
                             available_bytes_.value_or(0) + evidence_.other_process_bytes.value_or(0));
      case Cause::nccl:
        return add_more_room(
            "less_nccl", "fewer process groups, or NCCL_MAX_NCHANNELS and NCCL_BUFFSIZE smaller",
            "NCCL takes its buffers outside of PyTorch",
            available_bytes_.value_or(0) + evidence_.nccl_bytes.value_or(evidence_.own_outside_bytes.value_or(0)));
      default:
        return;
    }
  }

  // Replays the program as it is, and with each change, concurrently.
  Remedies result() {
    // The last come first: the page heap's replays take longest.
    run_in_parallel(candidates_.size() + 1, processors(), [&](std::size_t job) {
      const std::size_t i = candidates_.size() - job;
      if (i == 0) {
        of_bytes_ = held_bytes(*recorded_, now_).value_or(0);
      } else if (!candidates_[i - 1].is_limit) {
        replay(candidates_[i - 1]);
      }
    });
    for (Candidate& one : candidates_) {
      if (one.is_limit) replay_at_limit(one);  // needs of_bytes_
    }
    return {.of_bytes = of_bytes_, .recorded_bytes = recorded_bytes_if_other(), .best = best()};
  }

 private:
  // A change, and the program with it.
  struct Candidate {
    Remedy remedy;
    std::shared_ptr<const Trace> trace;
    Policy policy;
    std::uint64_t more_room = 0;
    bool is_limit = false;  // a limit is raised
    bool completes = false;
  };

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
  std::shared_ptr<const Trace> make_trace(const TraceOptions& options) const {
    return std::make_shared<const Trace>(trace_of(timeline_, options));
  }

  void add(Remedy remedy, std::shared_ptr<const Trace> trace, const Policy& policy, std::uint64_t more_room = 0) {
    candidates_.push_back(
        {.remedy = std::move(remedy), .trace = std::move(trace), .policy = policy, .more_room = more_room});
  }

  void add_without(std::string_view setting, const char* key, const char* text) {
    if (history_.settings.find(setting) == std::string::npos) return;
    add({.key = key, .setting = fmt::format("PYTORCH_CUDA_ALLOC_CONF without {}", setting), .text = text}, trace_,
        {.options = segment_config(history_.settings, setting)});
  }

  template <typename IsMerged>
  void add_pools(const char* key, const char* setting, const char* text, IsMerged is_merged, std::uint16_t into = 0) {
    TraceOptions merged = options_as_recorded();
    merged.follows_segments = false;
    merged.pools = own_numbers(history_.pools);
    for (std::uint16_t& pool : merged.pools) pool = is_merged(pool) ? into : pool;
    add({.key = key, .setting = setting, .text = text}, make_trace(merged), now_);
  }

  void add_graph_pools(const std::vector<bool>& graphs) {
    const auto first = std::ranges::find(graphs, true);
    if (first == graphs.end()) return;
    const auto into = static_cast<std::uint16_t>(first - graphs.begin());
    add_pools(
        "one_graph_pool", "pool = torch.cuda.graph_pool_handle(); torch.cuda.graph(graph, pool=pool) for all graphs",
        "graphs that do not run at the same time share memory", [&](std::uint16_t pool) { return graphs[pool]; }, into);
  }

  void add_one_stream() {
    TraceOptions merged = options_as_recorded();
    merged.follows_segments = false;
    merged.streams.assign(history_.streams.size(), 0);
    add({.key = "one_stream",
         .setting = "allocate on one stream: torch.empty(...) before `with torch.cuda.stream(...)`",
         .text = "memory that one stream has freed serves all"},
        make_trace(merged), now_);
  }

  void add_without_growth(const std::vector<Growth>& growths) {
    if (growths.empty()) return;
    TraceOptions freed = options_from(nullptr);
    freed.follows_segments = false;
    freed.freed = frees_of(growths, timeline_.allocations());
    add({.key = "free_leak",
         .setting = fmt::format("del what {} makes, or keep it on the CPU", growths.front().at),
         .text = "each allocation of the lines that grow is freed when the line allocates again"},
        make_trace(freed), now_);
  }

  // Adds the program's policy with more memory.
  void add_more_room(const char* key, const char* setting, const char* text, std::uint64_t room) {
    add({.key = key, .setting = setting, .text = text}, recorded_, now_, room);
  }

  // Under another limit PyTorch gives memory back at other requests than it did.
  void add_raised_limit() {
    constexpr const char* kKey = "raise_limit";
    constexpr const char* kText = "the program may take more of the device";
    if (evidence_.total_bytes.value_or(0) == 0) {
      return add_more_room(kKey, "torch.cuda.set_per_process_memory_fraction(1.00)", kText,
                           evidence_.reserved_bytes + evidence_.failure->device_free_bytes.value_or(0));
    }
    TraceOptions options = options_as_recorded();
    options.follows_segments = false;
    add({.key = kKey, .setting = "", .text = kText}, make_trace(options), now_);
    candidates_.back().is_limit = true;
  }

  // Thread-safe for different candidates.
  void replay(Candidate& one) const {
    // With less memory the cache is given back. The page heap's steps are the smaller, the smaller the device is.
    const std::uint64_t device_bytes = evidence_.total_bytes.value_or(kEnoughBytes);
    const std::optional<std::uint64_t> held = held_bytes(*one.trace, one.policy, device_bytes);
    if (!held) return;
    one.completes = true;
    Remedy& remedy = one.remedy;
    remedy.reserved_bytes = *held;
    if (available_bytes_) {
      const std::uint64_t room = std::max({one.more_room, *available_bytes_, kSmallestRoom});
      const PolicyFigures on_room = *figures_of(*one.trace, one.policy, room);
      remedy.serves = on_room.ooms == 0 && on_room.peak_held_bytes <= room;
      if (remedy.serves) remedy.reserved_bytes = on_room.peak_held_bytes;
    }
    remedy.range = held_range(*one.trace, one.policy, device_bytes, remedy.reserved_bytes);
    remedy.offer = offer_of(one.policy, {.peak_held_bytes = remedy.reserved_bytes}, now_);
  }

  // A replay that is not exact promises no more than the program had.
  bool helps(const Candidate& one) const {
    const Remedy& remedy = one.remedy;
    const bool is_less = static_cast<double>(remedy.reserved_bytes) <= static_cast<double>(of_bytes_) / kNearlyEqual;
    if (!one.completes || (evidence_.failure && !remedy.serves) || (!remedy.serves && !is_less)) return false;
    const std::optional<std::uint64_t> recorded = recorded_bytes_if_other();
    return !recorded || remedy.reserved_bytes < *recorded;
  }

  // Proposes the part of the device that the program as it is needs, in hundredths, and replays it there.
  void replay_at_limit(Candidate& one) const {
    const double total = static_cast<double>(*evidence_.total_bytes);
    const double part = std::round(100 * std::min(1.0, (static_cast<double>(of_bytes_) / total) + 0.005)) / 100;
    const PolicyFigures figures = *figures_of(*one.trace, one.policy, static_cast<std::size_t>(part * total));
    Remedy& remedy = one.remedy;
    remedy.setting = fmt::format("torch.cuda.set_per_process_memory_fraction({:.2f})", part);
    remedy.reserved_bytes = figures.peak_held_bytes;
    remedy.range = {.least = figures.peak_held_bytes, .most = figures.peak_held_bytes};
    remedy.serves = one.completes = figures.ooms == 0;
    remedy.offer = offer_of(one.policy, {.peak_held_bytes = remedy.reserved_bytes}, now_);
  }

  std::optional<std::uint64_t> recorded_bytes_if_other() const {
    std::optional<std::uint64_t> recorded = recorded_reserved_bytes(timeline_.device());
    if (start_) recorded = start_->peak_reserved_bytes;
    return evidence_.failure || recorded == of_bytes_ ? std::nullopt : recorded;
  }

  std::vector<Remedy> best() {
    std::vector<Remedy> found;
    for (Candidate& one : candidates_) {
      if (helps(one)) found.push_back(std::move(one.remedy));
    }
    std::ranges::stable_sort(found, {}, &Remedy::reserved_bytes);
    if (!found.empty()) {
      std::vector<PolicyOffer> offers;
      offers.reserve(found.size());
      for (const Remedy& one : found) offers.push_back(one.offer);
      const auto choice = found.begin() + static_cast<std::ptrdiff_t>(choose(offers));
      std::rotate(found.begin(), choice, choice + 1);
    }
    if (found.size() > kMostRemedies) found.resize(kMostRemedies);
    return found;
  }

  const Timeline& timeline_;
  const History& history_;
  const Evidence& evidence_;
  std::optional<RecordedStart> start_;  // the memory that it began with
  Policy now_;
  std::shared_ptr<const Trace> trace_;
  std::shared_ptr<const Trace> recorded_;  // that goes on from the start
  std::uint64_t of_bytes_ = 0;             // that the program holds as it is, replayed
  std::optional<std::uint64_t> available_bytes_;
  std::vector<Candidate> candidates_;
};

bool has_allocations(const DeviceHistory& device) {
  return std::ranges::any_of(device.events, [](const HistoryEvent& event) { return event.action == Action::alloc; });
}

}  // namespace

Remedies find_remedies(const Timeline& timeline, const Evidence& evidence, Cause cause,
                       const std::vector<Growth>& growths) {
  if (cause == Cause::pinned || !has_allocations(timeline.device())) return {};  // memory of the GPU is not what lacked
  RemedySearch search(timeline, evidence);
  search.add_settings(timeline.told());
  search.add_for(cause, growths);
  return search.result();
}

}  // namespace cachalot::tools
