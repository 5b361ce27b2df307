// Prints what bench/page_heap.py reports of a recorded program and `cachalot replay` does not know, as one JSON object:
//
//   page_heap <trace> <config> <plays> ...
//
//   floor     held / requested after each of these numbers of plays, of an allocator to which pages cost nothing: any page
//             without a live byte backs any address at once. Each block lies where it takes the fewest new pages, among
//             such places in the tightest hole, and does not move while it is live.
//   tails     host time of the allocations of a later play: the 99.9th percentile to that of heap:segments, and the
//             worst; each the least of several plays
//   trim      after the first play: the part of the idle memory that `trim` gives back, and the driver's time per GiB
//   reserved  driver time of the first play in ms per GiB held, where `reserve` has made this memory before
//
//   page_heap drivers <trace>
//
// prints what the heap does on two drivers whose costs are not those published, with and without `calibrate`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "bench/timing.h"
#include "bench/workloads.h"
#include "policy/option_grammar.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::bench {
namespace {

using tools::TraceEvent;

constexpr std::size_t kPage = 2 * kMiB;
constexpr std::size_t kEndless = std::size_t{1} << 60;

struct Hole {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t bytes() const { return end - begin; }
  // The pages between its ends without a live byte.
  std::size_t first_page() const { return round_up(begin, kPage) / kPage; }
  std::size_t end_page() const { return end / kPage; }
  bool has_pages() const { return first_page() < end_page(); }
  std::size_t new_pages(std::size_t from, std::size_t to) const {
    const std::size_t first = std::max(from / kPage, first_page());
    const std::size_t last = std::min(round_up(to, kPage) / kPage, end_page());
    return last > first ? last - first : 0;
  }
  // In a tie the tightest hole is the best.
  auto order() const { return std::pair(bytes(), begin); }
};

// Addresses without limit, and what lies there. Pages are held where a byte is live.
class FloorHeap {
 public:
  FloorHeap() { add({0, kEndless}); }

  std::size_t allocate(std::size_t bytes) {
    const auto [hole, at] = place(bytes);
    remove(hole);
    if (at > hole.begin) add({hole.begin, at});
    if (at + bytes < hole.end) add({at + bytes, hole.end});
    held_ += hole.new_pages(at, at + bytes);
    most_held_ = std::max(most_held_, held_);
    return at;
  }

  void free(std::size_t begin, std::size_t bytes) {
    Hole hole = {begin, begin + bytes};
    const auto next = holes_.lower_bound(begin);
    const bool joins_next = next != holes_.end() && next->first == hole.end;
    const bool joins_previous = next != holes_.begin() && std::prev(next)->second == begin;
    if (joins_next) hole.end = next->second;
    if (joins_previous) hole.begin = std::prev(next)->first;
    held_ -= hole.new_pages(begin, begin + bytes);
    if (joins_next) remove({begin + bytes, hole.end});
    if (joins_previous) remove({hole.begin, begin});
    add(hole);
  }

  std::size_t most_held_bytes() const { return most_held_ * kPage; }

 private:
  struct Place {
    Hole hole;
    std::size_t at = 0;
  };

  // Holes within held pages take no new page, so that the others are looked at only where none of those fits.
  Place place(std::size_t bytes) const {
    const auto tight = within_pages_.lower_bound({bytes, 0});
    if (tight != within_pages_.end()) return {{tight->second, tight->second + tight->first}, tight->second};
    Place best;
    std::size_t fewest = std::numeric_limits<std::size_t>::max();
    for (const auto& [size, begin] : with_pages_) {
      if (size < bytes) continue;
      const Hole hole = {begin, begin + size};
      for (const std::size_t at : {hole.begin, hole.end - bytes}) {
        const std::size_t pages = hole.new_pages(at, at + bytes);
        if (pages < fewest) fewest = pages, best = {hole, at};
      }
    }
    return best;
  }

  auto& kind_of(const Hole& hole) { return hole.has_pages() ? with_pages_ : within_pages_; }
  void add(const Hole& hole) {
    holes_[hole.begin] = hole.end;
    kind_of(hole).insert(hole.order());
  }
  void remove(const Hole& hole) {
    holes_.erase(hole.begin);
    kind_of(hole).erase(hole.order());
  }

  using Holes = std::set<std::pair<std::size_t, std::size_t>>;  // as Hole::order
  std::map<std::size_t, std::size_t> holes_;                    // end by begin
  Holes within_pages_;
  Holes with_pages_;
  std::size_t held_ = 0;  // pages
  std::size_t most_held_ = 0;
};

// Plays a trace several times; blocks that it never frees are kept from the first play on.
class FloorReplay {
 public:
  explicit FloorReplay(const tools::Trace& trace) : trace_(trace), blocks_(trace.slots), kept_(trace.slots, kNone) {}

  void play() {
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& event = trace_.events[i];
      if (event.empties_cache()) continue;
      if (event.is_free()) {
        free(event.slot);
      } else if (kept_[event.slot] != i) {
        allocate(event, i);
      }
    }
    for (std::size_t slot = 0; slot < blocks_.size(); ++slot) {
      if (blocks_[slot].bytes != 0) kept_[slot] = std::exchange(blocks_[slot], {}).event;
    }
  }

  double ratio() const { return static_cast<double>(heap_.most_held_bytes()) / static_cast<double>(most_requested_); }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kUnit = 512;

  struct Block {
    std::size_t at = 0;
    std::size_t bytes = 0;  // requested; 0: none
    std::size_t event = 0;
  };

  void allocate(const TraceEvent& event, std::size_t number) {
    if (event.bytes == 0) return;
    blocks_[event.slot] = {heap_.allocate(round_up(event.bytes, kUnit)), event.bytes, number};
    requested_ += event.bytes;
    most_requested_ = std::max(most_requested_, requested_);
  }

  void free(std::uint32_t slot) {
    const Block block = std::exchange(blocks_[slot], {});
    if (block.bytes == 0) return;
    heap_.free(block.at, round_up(block.bytes, kUnit));
    requested_ -= block.bytes;
  }

  const tools::Trace& trace_;
  FloorHeap heap_;
  std::vector<Block> blocks_;      // by slot
  std::vector<std::size_t> kept_;  // by slot: the event of a block that stays
  std::size_t requested_ = 0;
  std::size_t most_requested_ = 0;
};

std::string floor_json(const tools::Trace& trace, std::vector<std::size_t> plays) {
  std::ranges::sort(plays);
  FloorReplay replay(trace);
  std::string json;
  std::size_t done = 0;
  for (const std::size_t wanted : plays) {
    for (; done < wanted; ++done) replay.play();
    json += fmt::format(R"({}"{}": {:.6f})", json.empty() ? "" : ", ", wanted, replay.ratio());
  }
  return json;
}

// Nanoseconds: the 99.9th percentile and the worst.
using Tail = std::array<double, 2>;

Tail tail_of_play(tools::ReplayWorld& world, const tools::Trace& trace) {
  std::vector<double> times;
  times.reserve(trace.allocation_count);
  for (const TraceEvent& event : trace.events) {
    const double ns = ns_of([&] { world.play(event); });
    if (!event.is_free()) times.push_back(ns);
  }
  world.free_all();
  std::ranges::sort(times);
  return {times[place_of_rank(0.999, times.size())], times.back()};
}

void keep_least(Tail& least, const Tail& tail) {
  std::ranges::transform(least, tail, least.begin(), [](double a, double b) { return std::min(a, b); });
}

// The plays of both heaps take turns, so that other work on the machine disturbs both.
std::string tails_json(const tools::Trace& trace, const tools::ReplayOptions& options) {
  constexpr int kPlays = 7;
  constexpr double kNever = std::numeric_limits<double>::max();
  tools::ReplayOptions of_segments = options;
  of_segments.config = "heap:segments";
  tools::ReplayWorld pages(trace, options);
  tools::ReplayWorld segments(trace, of_segments);
  Tail own = {kNever, kNever};
  Tail other = own;
  for (int play = 0; play < kPlays; ++play) {
    keep_least(own, tail_of_play(pages, trace));
    keep_least(other, tail_of_play(segments, trace));
  }
  return fmt::format(R"("p999": {:.4f}, "worst_us": {:.1f})", own[0] / other[0], own[1] / 1000);
}

std::string trim_json(const tools::Trace& trace, const tools::ReplayOptions& options) {
  tools::ReplayWorld world(trace, options);
  for (const TraceEvent& event : trace.events) world.play(event);
  const DeviceStats stats = world.allocator().memory_stats();
  const auto idle = static_cast<double>(stats.reserved_bytes.all.current - stats.allocated_bytes.all.current);
  const double before_us = world.device().driver_us();
  const auto trimmed = static_cast<double>(world.allocator().trim(/*keep_bytes=*/0));
  const double ms = (world.device().driver_us() - before_us) / 1000;
  return fmt::format(R"("part": {:.4f}, "ms_per_gib": {:.4f})", idle == 0 ? 1 : trimmed / idle,
                     trimmed == 0 ? 0 : ms / (trimmed / static_cast<double>(kGiB)));
}

std::size_t held_bytes_of_play(const tools::Trace& trace, const tools::ReplayOptions& options) {
  tools::ReplayWorld world(trace, options);
  for (const TraceEvent& event : trace.events) world.play(event);
  return world.allocator().memory_stats().reserved_bytes.all.peak;
}

std::string reserved_json(const tools::Trace& trace, const tools::ReplayOptions& options) {
  const std::size_t held = held_bytes_of_play(trace, options);
  tools::ReplayWorld world(trace, options);
  world.allocator().reserve(held);
  const double before_us = world.device().driver_us();
  for (const TraceEvent& event : trace.events) world.play(event);
  const double ms = (world.device().driver_us() - before_us) / 1000;
  return fmt::format("{:.4f}", ms / (static_cast<double>(held) / static_cast<double>(kGiB)));
}

std::string driver_json(const tools::Trace& trace, const tools::ReplayOptions& options) {
  constexpr std::size_t kLast = 11;
  const tools::ReplayResult found = tools::replay(trace, options);
  const double gib = static_cast<double>(found.peak_reserved_bytes) / static_cast<double>(kGiB);
  return fmt::format(R"({{"start": {:.4f}, "ms": {:.4f}, "calls": {}, "held": {:.6f}, "smallest": {:.6f}}})",
                     found.driver_us_per_iteration.front() / 1000 / gib, found.driver_us_per_iteration[kLast] / 1000,
                     found.memory_calls_per_iteration[kLast], found.ratio_per_iteration[kLast],
                     static_cast<double>(tools::find_min_device(trace, options).value_or(0)) /
                         static_cast<double>(peak_live_bytes(trace)));
}

// The access call of one driver costs for each mapping of its range, as GMLake's table has it; mappings wait on the
// other.
std::string drivers_json(const tools::Trace& trace) {
  tools::ReplayOptions access;
  access.iterations = 12;
  access.check_hazards = true;
  tools::ReplayOptions waits = access;
  access.access_us_per_mapping = 96;
  waits.mapping_waits = true;
  std::string json;
  for (const auto& [name, options] : {std::pair("access", access), std::pair("waits", waits)}) {
    for (const std::string config : {"heap:pages", "heap:pages,calibrate:False"}) {
      tools::ReplayOptions configured = options;
      configured.config = config;
      json += fmt::format(R"({}"{} {}": {})", json.empty() ? "" : ", ", name, config, driver_json(trace, configured));
    }
  }
  return json;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "drivers") {
    fmt::print("{{{}}}\n", drivers_json(tools::read_trace(arguments[1])));
    return 0;
  }
  if (arguments.size() < 3) {
    fmt::print(stderr, "Usage: page_heap <trace> <config> <plays> ... | page_heap drivers <trace>\n");
    return 2;
  }
  std::vector<std::size_t> plays;
  for (const std::string& text : std::span(arguments).subspan(2)) {
    plays.push_back(number_in<std::size_t>(text).value_or(0));
    if (plays.back() != 0) continue;
    fmt::print(stderr, "page_heap: plays: '{}' is not a whole number above 0\n", text);
    return 2;
  }
  start_a_thread();
  const tools::Trace trace = tools::read_trace(arguments[0]);
  tools::ReplayOptions options;
  options.config = arguments[1];
  fmt::print("{{\"floor\": {{{}}}, \"tails\": {{{}}}, \"trim\": {{{}}}, \"reserved\": {}}}\n", floor_json(trace, plays),
             tails_json(trace, options), trim_json(trace, options), reserved_json(trace, options));
  return 0;
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  try {
    return cachalot::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fputs(fmt::format("page_heap: {}\n", error.what()).c_str(), stderr);
    return 1;
  }
}
