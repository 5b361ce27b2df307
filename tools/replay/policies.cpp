#include "tools/replay/policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <span>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "policy/torch_policy.h"
#include "tools/replay/expandable_segments.h"
#include "tools/replay/replay.h"

namespace cachalot::tools {
namespace {

using Heap = Policy::Heap;
using Sizes = std::initializer_list<std::size_t>;

constexpr std::size_t kMostDivisions = 16;

struct NamedHeap {
  std::string_view name;
  std::string_view key;
};

constexpr std::array<NamedHeap, kHeapCount> kNamed = {
    {{"PyTorch", "pytorch"}, {"expandable segments", "expandable_segments"}, {"page heap", "page_heap"}}};

// "a:1,b:2".
class OptionList {
 public:
  template <typename Value>
  void add(std::string_view key, const Value& value) {
    text_ += fmt::format("{}{}:{}", text_.empty() ? "" : ",", key, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

constexpr std::string_view kOfSegments = "heap:segments,";

// Returns the options as PyTorch has them.
std::string_view without_heap(std::string_view options) {
  return options.starts_with(kOfSegments) ? options.substr(kOfSegments.size()) : options;
}

OptionList options_of(const Policy& policy) {
  OptionList list;
  if (policy.heap == Heap::expandable_segments) list.add("expandable_segments", "True");
  if (policy.heap == Heap::pages) list.add("heap", "pages");
  if (policy.max_split_size_mb != 0) list.add("max_split_size_mb", policy.max_split_size_mb);
  if (policy.roundup_power2_divisions != 0) list.add("roundup_power2_divisions", policy.roundup_power2_divisions);
  if (policy.garbage_collection_threshold != 0)
    list.add("garbage_collection_threshold", policy.garbage_collection_threshold);
  if (policy.page_size_mb != 0) list.add("page_size_mb", policy.page_size_mb);
  if (policy.remap_slack != 0) list.add("remap_slack", policy.remap_slack);
  if (policy.cross_stream != Policy().cross_stream) list.add("cross_stream", policy.cross_stream);
  return list;
}

Options options_with_divisions(std::size_t divisions) {
  Options options;
  options.roundup_power2_divisions.fill(divisions);
  return options;
}

// No segment of PyTorch's is larger, whatever the rounding.
std::size_t largest_segment(const ProgramShape& shape, bool is_rounded) {
  const std::size_t rounded = is_rounded ? std::bit_ceil(shape.largest_request) : round_to_block(shape.largest_request);
  return std::max(segment_size(rounded, kLargeBuffer), kLargeBuffer);
}

}  // namespace

std::string_view name_of(Policy::Heap heap) { return kNamed[index_of(heap)].name; }
std::string_view key_of(Policy::Heap heap) { return kNamed[index_of(heap)].key; }

Policy policy_named(const std::string& name) {
  if (name == "native") return {};
  // cachalot's option "expandable_segments:True" would be the page heap; a user of PyTorch means PyTorch's allocator.
  if (name == "expandable" || name == "expandable_segments:True") return {.heap = Heap::expandable_segments};
  if (name == "pages") return {.heap = Heap::pages};
  parse_options(name);
  return {.options = name};
}

std::string key_of(const Policy& policy) {
  if (!policy.options.empty()) return std::string(without_heap(policy.options));
  const std::string text = options_of(policy).text();
  return text.empty() ? "native" : text;
}

std::string config_of(const Policy& policy) {
  if (!policy.options.empty()) return policy.options;
  OptionList list = options_of(policy);
  if (policy.heap == Heap::segments) list.add("heap", "segments");
  if (policy.limit_bytes != 0) list.add("limit", fmt::format("{}B", policy.limit_bytes));
  return list.text();
}

std::string line_of(const Policy& policy, std::size_t device_bytes) {
  if (policy.options.starts_with(kOfSegments))
    return fmt::format("PYTORCH_CUDA_ALLOC_CONF={}", without_heap(policy.options));
  if (!policy.options.empty()) return "python -m cachalot run --config " + policy.options;
  OptionList list = options_of(policy);
  if (list.text().empty()) return "";
  if (policy.heap == Heap::pages) return "python -m cachalot run --config " + list.text();
  if (policy.limit_bytes != 0) list.add("per_process_memory_fraction", fraction_of(policy.limit_bytes, device_bytes));
  return "PYTORCH_CUDA_ALLOC_CONF=" + list.text();
}

double fraction_of(std::size_t limit_bytes, std::size_t device_bytes) {
  constexpr double kSteps = 10'000;
  const double exact = static_cast<double>(limit_bytes) / static_cast<double>(std::max<std::size_t>(device_bytes, 1));
  return std::clamp(std::ceil(exact * kSteps), 1.0, kSteps - 1) / kSteps;
}

std::vector<Policy> usual_policies() {
  std::vector<Policy> policies = {{}};
  for (const std::size_t size : Sizes{32, 128, 512}) policies.push_back({.max_split_size_mb = size});
  for (const std::size_t divisions : Sizes{4, 8}) policies.push_back({.roundup_power2_divisions = divisions});
  for (const double threshold : {0.6, 0.8}) policies.push_back({.garbage_collection_threshold = threshold});
  policies.push_back({.heap = Heap::expandable_segments});
  policies.push_back({.heap = Heap::pages});
  for (const double slack : {0.03, 0.1}) policies.push_back({.heap = Heap::pages, .remap_slack = slack});
  policies.push_back({.heap = Heap::pages, .cross_stream = "off"});
  return policies;
}

std::vector<Policy> policies_of_sweep() {
  std::vector<Policy> policies;
  for (const std::size_t size : Sizes{0, 20, 32, 64, 128, 256, 512, 1024}) {
    for (const std::size_t divisions : Sizes{0, 1, 2, 4, 8, 16}) {
      for (const double threshold : {0.0, 0.6, 0.7, 0.8, 0.9, 0.95}) {
        policies.push_back({.max_split_size_mb = size,
                            .roundup_power2_divisions = divisions,
                            .garbage_collection_threshold = threshold});
      }
    }
  }
  policies.push_back({.heap = Heap::expandable_segments});
  for (const std::size_t size : Sizes{0, 2, 4, 8, 16, 64}) {
    for (const double slack : {0.0, 0.02, 0.05, 0.1}) {
      for (const std::string_view cross_stream : {"completed", "off", "scarce", "wait"}) {
        policies.push_back(
            {.heap = Heap::pages, .page_size_mb = size, .remap_slack = slack, .cross_stream = cross_stream});
      }
    }
  }
  return policies;
}

ProgramShape shape_of(const Trace& trace) {
  ProgramShape shape;
  shape.streams = trace.streams.size();
  std::vector<std::size_t> idle;
  std::vector<Options> roundings;
  for (std::size_t divisions = 1; divisions <= kMostDivisions; divisions *= 2) {
    idle.push_back(divisions);
    roundings.push_back(options_with_divisions(divisions));
  }
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t) {
    for (const TraceEvent& event : events) {
      if (event.is_free() || event.bytes == 0) continue;
      shape.largest_request = std::max<std::size_t>(shape.largest_request, event.bytes);
      for (std::size_t i = 0; i < idle.size(); ++i) {
        if (idle[i] != 0 && round_size(event.bytes, roundings[i]) != round_to_block(event.bytes)) idle[i] = 0;
      }
    }
    return true;
  });
  std::erase(idle, 0);
  shape.divisions_without_effect = std::move(idle);
  return shape;
}

Policy without_idle_options(const Policy& policy, const ProgramShape& shape) {
  Policy active = policy;
  if (std::ranges::count(shape.divisions_without_effect, active.roundup_power2_divisions) > 0)
    active.roundup_power2_divisions = 0;
  const bool is_rounded = active.roundup_power2_divisions != 0;
  if (shape.largest_request == 0 || active.max_split_size_mb * kMiB > largest_segment(shape, is_rounded))
    active.max_split_size_mb = 0;
  if (shape.streams <= 1) active.cross_stream = Policy().cross_stream;
  return active;
}

namespace {

constexpr std::size_t kSmallestDevice = 2 * kMiB;  // a page

bool is_of_pages(const Policy& policy) {
  return policy.heap == Heap::pages || policy.options.find("heap:pages") != std::string::npos;
}

ReplayOptions options_of(const std::string& config, std::size_t device_bytes) {
  ReplayOptions options;
  options.config = config;
  options.device_bytes = device_bytes;
  return options;
}

// Plays the trace once. Returns false if more was held than is wanted: the play has ended there.
bool play(const Trace& trace, ReplayWorld& world, PolicyFigures& figures, const std::atomic<std::size_t>* most) {
  bool is_wanted = true;
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t first) {
    for (std::size_t i = 0; i < events.size() && is_wanted; ++i) {
      if (!world.play_with_work(events[i], first + i)) ++figures.ooms;
      is_wanted = most == nullptr || world.device().peak_used_bytes() <= most->load(std::memory_order_relaxed);
    }
    return is_wanted;
  });
  return is_wanted;
}

}  // namespace

namespace {

std::optional<PolicyFigures> figures_of_trace(const Trace& trace, const Policy& policy, std::size_t device_bytes,
                                              const std::atomic<std::size_t>* most_held_bytes) {
  PolicyFigures figures;
  if (policy.heap == Heap::expandable_segments) {
    const ExpandableFigures expandable = play_on_expandable_segments(trace, device_bytes);
    figures.peak_held_bytes = expandable.peak_reserved_bytes;
    figures.ooms = expandable.ooms;
    figures.driver_us = driver_us_of_growth(expandable);
    return figures;
  }
  ReplayWorld world(trace, options_of(config_of(policy), device_bytes));
  if (!play(trace, world, figures, most_held_bytes)) return std::nullopt;
  world.free_all();
  figures.peak_held_bytes = world.device().peak_used_bytes();
  figures.driver_us = world.device().driver_us();
  return figures;
}

}  // namespace

std::optional<PolicyFigures> figures_of(const Trace& trace, const Policy& policy, std::size_t device_bytes,
                                        const std::atomic<std::size_t>* most_held_bytes) {
  if (!trace.as_recorded || policy != Policy()) return figures_of_trace(trace, policy, device_bytes, most_held_bytes);
  const PolicyFigures recorded = *figures_of_trace(*trace.as_recorded, policy, device_bytes, nullptr);
  if (recorded.ooms == 0) return recorded;
  const PolicyFigures afresh = *figures_of_trace(trace, policy, device_bytes, nullptr);
  return afresh.ooms < recorded.ooms ? afresh : recorded;
}

HeldRange held_range(const Trace& trace, const Policy& policy, std::size_t device_bytes, std::size_t held_bytes) {
  HeldRange range{.least = held_bytes, .most = held_bytes};
  if (!is_of_pages(policy)) return range;
  const auto add = [&](std::string_view more, double work_us) {
    ReplayOptions options = options_of(config_of(policy).append(more), device_bytes);
    options.work_us = work_us;
    ReplayWorld world(trace, options);
    PolicyFigures figures;
    play(trace, world, figures, nullptr);
    if (figures.ooms > 0) return;  // of a device that is just large enough
    range.least = std::min(range.least, world.device().peak_used_bytes());
    range.most = std::max(range.most, world.device().peak_used_bytes());
  };
  constexpr double kMuchWork = 100;
  add(",thread_cache:False", /*work_us=*/0);
  if (trace.streams.size() > 1) {
    add("", kMuchWork);
    add(",cross_stream:off", kMuchWork);
  }
  range.most += kSmallestDevice;
  return range;
}

double host_ns_per_event(const Trace& trace, const Policy& policy, std::size_t device_bytes) {
  if (policy.heap == Heap::expandable_segments || trace.event_count == 0) return 0;
  constexpr std::size_t kWantedEvents = 1'000'000;  // some tenth of a second
  constexpr std::size_t kMostPasses = 20;
  const auto passes = static_cast<int>(std::clamp<std::size_t>(kWantedEvents / trace.event_count, 1, kMostPasses));
  const std::int64_t ns = time_best_pass(trace, options_of(config_of(policy), device_bytes), passes);
  return static_cast<double>(ns) / static_cast<double>(trace.event_count);
}

PolicyOffer offer_of(const Policy& policy, const PolicyFigures& figures, const Policy& own) {
  const std::string key = key_of(policy);
  return {.ooms = figures.ooms,
          .held_bytes = figures.peak_held_bytes,
          .driver_us = figures.driver_us,
          .is_own = policy == own,
          .needs_cachalot = is_of_pages(policy),
          .options = policy == Policy() ? 0 : 1 + static_cast<std::size_t>(std::ranges::count(key, ','))};
}

std::size_t choose(std::span<const PolicyOffer> offers) {
  const auto least =
      std::ranges::min_element(offers, {}, [](const PolicyOffer& one) { return std::tuple(one.ooms, one.held_bytes); });
  const auto is_equal = [&](const PolicyOffer& one) {
    return one.ooms == least->ooms &&
           static_cast<double>(one.held_bytes) <
               kNearlyEqual * static_cast<double>(std::max<std::size_t>(least->held_bytes, 1));
  };
  const auto rank = [&](const PolicyOffer& one) {
    return std::tuple(!is_equal(one), !one.is_own, one.needs_cachalot, one.options, one.driver_us);
  };
  return static_cast<std::size_t>(std::ranges::min_element(offers, {}, rank) - offers.begin());
}

namespace {

// Returns whether each allocation of the trace, played once, succeeds on a device of this size.
bool completes_on(const Trace& trace, Policy policy, std::size_t device_bytes) {
  if (policy.heap == Heap::expandable_segments)
    return play_on_expandable_segments(trace, device_bytes, /*until_failure=*/true).ooms == 0;
  if (policy.garbage_collection_threshold != 0) policy.limit_bytes = device_bytes;
  return device_bytes >= kSmallestDevice && completes(trace, options_of(config_of(policy), device_bytes), device_bytes);
}

}  // namespace

MemoryNeed::MemoryNeed(std::shared_ptr<const Trace> trace)
    : trace_(std::move(trace)), live_bytes_(peak_live_bytes(*trace_)) {}

// A policy that collects garbage never does where what it holds without is below that part of the limit.
std::size_t MemoryNeed::held_bytes(const Policy& policy) {
  std::optional<std::size_t>& held_bytes = known_[policy].held_bytes;
  if (held_bytes) return *held_bytes;
  Policy without_limit = policy;
  without_limit.limit_bytes = 0;
  const double threshold = std::exchange(without_limit.garbage_collection_threshold, 0);
  const PolicyFigures figures = *figures_of(*trace_, without_limit, kEnoughBytes);
  CACHALOT_REQUIRE(figures.ooms == 0, "{}: of {} of memory, {} allocations had none", trace_->path,
                   format_bytes(kEnoughBytes), figures.ooms);
  const std::size_t held = figures.peak_held_bytes;
  held_bytes = threshold == 0 ? held : static_cast<std::size_t>(static_cast<double>(held) / threshold) + 1;
  return *held_bytes;
}

bool MemoryNeed::fits(const Policy& policy, std::size_t bytes) {
  if (bytes < live_bytes_) return false;
  // The page heap remaps more on a smaller device, and may fail on one that is as large as what it held on a larger one.
  if (policy.heap != Heap::pages && policy.options.empty() && bytes >= held_bytes(policy)) return true;
  Known& known = known_[policy];
  if (bytes <= known.too_few) return false;
  if (bytes >= known.enough) return true;
  const bool is_enough = completes_on(*trace_, policy, bytes);
  (is_enough ? known.enough : known.too_few) = bytes;
  return is_enough;
}

}  // namespace cachalot::tools
