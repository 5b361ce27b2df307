// Allocator policies, and what a program's allocations come to under each.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

// An allocator policy, as data: settings of PyTorch's own allocator or of the page heap.
struct Policy {
  // The heaps in the order of tables: PyTorch's default, its expandable segments, and cachalot's page heap.
  enum class Heap : std::uint8_t { segments, expandable_segments, pages };

  Heap heap = Heap::segments;
  // PyTorch's options, for segments. 0: not set.
  std::size_t max_split_size_mb = 0;
  std::size_t roundup_power2_divisions = 0;
  double garbage_collection_threshold = 0;
  std::size_t limit_bytes = 0;  // of the memory that is held; garbage collection needs one
  // Options of the page heap; these are their defaults.
  std::size_t page_size_mb = 0;
  double remap_slack = 0;
  std::string_view cross_stream = "completed";
  // Options (options.h) in place of all of these; "": none. The heap of expandable segments has none.
  std::string options{};

  friend auto operator<=>(const Policy&, const Policy&) = default;  // NOLINT(modernize-use-nullptr)
};

inline constexpr std::array kHeaps = {Policy::Heap::segments, Policy::Heap::expandable_segments, Policy::Heap::pages};
inline constexpr std::size_t kHeapCount = kHeaps.size();

// Returns the heap's place in an array with an element for each.
constexpr std::size_t index_of(Policy::Heap heap) { return static_cast<std::size_t>(heap); }
// Returns "PyTorch", "expandable segments" or "page heap".
std::string_view name_of(Policy::Heap heap);
// Returns the key of JSON: "pytorch", "expandable_segments" or "page_heap".
std::string_view key_of(Policy::Heap heap);

// Returns the policy that a user names: "native", "expandable", "pages", or options of cachalot's allocator.
// "expandable_segments:True" is PyTorch's, too. Throws InvalidArgument for options that the allocator refuses.
Policy policy_named(const std::string& name);

// Returns its name in tables and JSON, the options that differ from PyTorch's default: "native",
// "max_split_size_mb:128", "expandable_segments:True", "heap:pages,page_size_mb:2". A limit is not part of it.
std::string key_of(const Policy& policy);

// Returns the options for a replay (options.h). Not for expandable segments, which are a model.
std::string config_of(const Policy& policy);

// Returns the setting for the user, or the words before the program, on a GPU of `device_bytes`; "" for PyTorch's
// default.
std::string line_of(const Policy& policy, std::size_t device_bytes);

// Returns the fraction of a device that PyTorch is to be given as a limit of about `limit_bytes`: four decimals, above 0
// and below 1.
double fraction_of(std::size_t limit_bytes, std::size_t device_bytes);

// Returns the policies of a usual table, PyTorch's default first. Those with garbage collection do not have a limit yet.
std::vector<Policy> usual_policies();

// Returns all combinations of max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold, and of the page
// heap's options, PyTorch's default first.
std::vector<Policy> policies_of_sweep();

// The properties of a program that decide whether an option has an effect.
struct ProgramShape {
  std::size_t largest_request = 0;
  std::size_t streams = 1;
  std::vector<std::size_t> divisions_without_effect;  // of roundup_power2_divisions: no request is rounded otherwise
};

ProgramShape shape_of(const Trace& trace);

// Returns the policy without the options that have no effect on the program: the two hold the same memory at each event.
//
// max_split_size_mb has none if it is above the largest segment; roundup_power2_divisions, if it rounds no request to another
// size; cross_stream, if there is one stream.
Policy without_idle_options(const Policy& policy, const ProgramShape& shape);

// Figures of one program's allocations under one policy: on a device, and the smallest device on which they succeed.

// More memory than a program needs on one device. Not more by orders of magnitude: the page heap reserves as many addresses for
// each pool and stream, and a device has 2^47 of them.
inline constexpr std::size_t kEnoughBytes = std::size_t{1} << 40;

// The factor below which two policies hold nearly equal memory: the difference does not justify a setting.
inline constexpr double kNearlyEqual = 1.01;

struct PolicyFigures {
  std::size_t peak_held_bytes = 0;  // the most memory of the device at once
  std::size_t ooms = 0;             // allocations that failed
  // Simulated time of the device's calls in microseconds; of expandable segments, of those alone that make memory.
  double driver_us = 0;
  double ns_per_event = 0;  // host time; 0 where it is not measured
};

// Returns the figures except the host time of one play of the trace. PyTorch's default policy begins with the memory that it
// had (Trace::as_recorded), unless fewer allocations fail without it. Returns nullopt, at once, where more than
// `most_held_bytes` are held. Thread-safe.
std::optional<PolicyFigures> figures_of(const Trace& trace, const Policy& policy, std::size_t device_bytes,
                                        const std::atomic<std::size_t>* most_held_bytes = nullptr);
// Bytes that a policy holds at the peak, in the real program: the replay has one thread and its own timing.
struct HeldRange {
  std::size_t least = 0;
  std::size_t most = 0;
};

// Returns the range, which PyTorch's policies have as one figure, `held_bytes` of figures_of. The page heap's decisions follow
// the device's lag and the caches of threads: the range is of replays without and with them, of several streams also with
// more work and without memory of other streams, and of a page for the other threads of the program.
HeldRange held_range(const Trace& trace, const Policy& policy, std::size_t device_bytes, std::size_t held_bytes);

// Returns the host time of an event in nanoseconds, of the fastest of some plays; 0 for expandable segments, which are a
// model. Meaningful only while nothing else runs.
double host_ns_per_event(const Trace& trace, const Policy& policy, std::size_t device_bytes);

// A policy that was replayed, as a choice among several sees it.
struct PolicyOffer {
  std::size_t ooms = 0;
  std::size_t held_bytes = 0;
  double driver_us = 0;
  bool is_own = false;          // the program runs with it
  bool needs_cachalot = false;  // PyTorch alone does not have it
  std::size_t options = 0;      // that are set: a plain policy has few
};

// Returns what the choice sees of the policy. `own` is the program's.
PolicyOffer offer_of(const Policy& policy, const PolicyFigures& figures, const Policy& own);

// Returns the index of the policy to take: of those with the fewest failed allocations that hold less than 1 % more than the
// least of them, the program's own, then PyTorch's before cachalot's, then the one with fewer options, then the one whose driver
// calls take the least time. Requires an offer.
std::size_t choose(std::span<const PolicyOffer> offers);

// A MemoryNeed answers whether a trace's program completes on a device, by policy: each answer once, by a replay until the
// first allocation that fails. A size that is enough makes every larger one enough. No replay is needed below the most live
// memory, nor, of PyTorch's policies, from the memory on that they hold without a limit. Garbage collection has the device as
// its limit.
// Not thread-safe.
class MemoryNeed {
 public:
  explicit MemoryNeed(std::shared_ptr<const Trace> trace);
  explicit MemoryNeed(Trace trace) : MemoryNeed(std::make_shared<const Trace>(std::move(trace))) {}

  // Returns the most bytes that live at once: whatever the policy, less is not enough.
  std::size_t live_bytes() const { return live_bytes_; }
  // Returns the most bytes that the policy holds on a device with enough of them; of one that collects garbage, from how
  // large a device on it does not.
  std::size_t held_bytes(const Policy& policy);
  bool fits(const Policy& policy, std::size_t bytes);
  // Tells what held_bytes returns, where it is known.
  void set_held(const Policy& policy, std::size_t bytes) { known_[policy].held_bytes = bytes; }

 private:
  // Bytes of devices.
  struct Known {
    std::optional<std::size_t> held_bytes;
    std::size_t too_few = 0;
    std::size_t enough = kEnoughBytes;
  };

  std::shared_ptr<const Trace> trace_;
  std::size_t live_bytes_;
  std::map<Policy, Known> known_;
};

}  // namespace cachalot::tools
