// The figures, one function a group: the same work for every peer. bench/peers/README.md says how each is taken.
//
// A figure wants a process of its own, for what an earlier one has left in the allocator changes a later one.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/peer.h"
#include "bench/timing.h"
#include "bench/workloads.h"
#include "bench/workloads_many.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::bench {

// The amount of measuring. The work is equal; if quick, its time is taken from fewer runs.
struct Effort {
  double budget_ns;  // for the runs of one figure
  int shots;         // of threads
  int pairs;         // of each thread in a shot
  int tails;         // the number of times that a percentile is taken
};
inline constexpr Effort kFull = {.budget_ns = 2.5e8, .shots = 30, .pairs = 100'000, .tails = 5};
inline constexpr Effort kQuick = {.budget_ns = 3e7, .shots = 5, .pairs = 50'000, .tails = 3};

template <Allocates Peer>
void measure_hot_pairs(Peer& peer, const Effort& effort) {
  for (const std::size_t bytes : {std::size_t{512}, 4 * kKiB, kMiB, 8 * kMiB}) {
    HotPair<Peer&> work(bytes, peer);
    print_figure("hot_pair/" + std::to_string(bytes), ns_a_pair_within(effort.budget_ns, work), "ns");
  }
}

template <Allocates Peer>
void measure_churn(Peer& peer, const Effort& effort) {
  Churn<Peer&> work(4096, 512, 16 * kMiB, peer);
  print_figure("churn/4096", ns_a_pair_within(effort.budget_ns, work), "ns");
}

template <Allocates Peer>
void measure_no_holes(Peer& peer, const Effort& effort) {
  Holes<Peer&> none(0, 0, peer);
  print_figure("holes/0", ns_a_pair_within(effort.budget_ns, none), "ns");
}

template <Allocates Peer>
void measure_holes(Peer& peer, const Effort& effort) {
  constexpr std::size_t kSpare = Peer::kLinearInHoles ? 64 : 4096;  // a churn of 4,096 would take a quarter of a minute
  Holes<Peer&> work(65536, kSpare, peer);
  print_figure("holes/65536", ns_a_pair_within(effort.budget_ns, work), "ns");
  const double churn = best_within(effort.budget_ns, [&] { work.churn(); });
  print_figure("holes_churn/65536", churn / static_cast<double>(work.pairs_a_churn()), "ns");
}

// The best of one, two, four, ... threads, which take turns, so that other work on the machine disturbs all alike.
template <std::size_t kCounts, typename Work>
std::array<double, kCounts> best_shots(Work& work, const Effort& effort) {
  std::array<double, kCounts> best = {};
  for (int shot = 0; shot < effort.shots; ++shot) {
    for (std::size_t i = 0; i < kCounts; ++i) best[i] = std::max(best[i], work.shot(1 << i, effort.pairs));
  }
  return best;
}

template <Allocates Peer>
void measure_threads(Peer& peer, const Effort& effort) {
  ThreadPairs<Peer&> work(peer);
  const auto best = best_shots<3>(work, effort);
  for (std::size_t i = 0; i < best.size(); ++i) {
    print_figure("threads/" + std::to_string(1 << i), best[i], "M pairs/s");
  }
  double on_one_stream = 0;
  for (int shot = 0; shot < effort.shots; ++shot)
    on_one_stream = std::max(on_one_stream, work.shot(2, effort.pairs, /*on_one_stream=*/true));
  print_figure("threads_one_stream/2", on_one_stream, "M pairs/s");
}

template <Allocates Peer>
void measure_handoff(Peer& peer, const Effort& effort) {
  Handoff<Peer&> work(peer);
  const auto best = best_shots<2>(work, effort);
  print_figure("handoff/1+1", best[0], "M pairs/s");
  print_figure("handoff/2+2", best[1], "M pairs/s");
}

template <Allocates Peer>
void measure_rmm_random(Peer& peer, const Effort& effort) {
  RmmRandom<Peer&> work(100'000, 1, peer);
  print_figure("rmm_random/first", ns_of([&] { work.sequence(); }) / 1e6, "ms");
  if constexpr (Peer::kLinearInHoles) {
    print_left_out("rmm_random/again", "takes as many seconds again");
  } else {
    print_figure("rmm_random/again", best_within(effort.budget_ns, [&] { work.sequence(); }) / 1e6, "ms");
  }
}

inline constexpr std::size_t kMillion = 1'000'000;

template <Allocates Peer>
void measure_million(Peer& peer, const Effort&) {
  if constexpr (!Peer::kMillionBlocks) {
    for (const char* figure : {"grow", "grow_again", "free_in_order", "free_at_random"}) {
      print_left_out(std::string("million/") + figure, "takes minutes");
    }
    return;
  }
  ManyBlocks<Peer&> blocks(kMillion, peer);
  print_figure("million/grow", ns_of([&] { blocks.allocate_all(); }) / kMillion, "ns");
  double again = std::numeric_limits<double>::max();
  double in_order = again;
  for (int pass = 0; pass < 2; ++pass) {
    in_order = std::min(in_order, ns_of([&] { blocks.free_in_order(); }));
    again = std::min(again, ns_of([&] { blocks.allocate_all(); }));
  }
  print_figure("million/grow_again", again / kMillion, "ns");
  print_figure("million/free_in_order", in_order / kMillion, "ns");
  if constexpr (Peer::kLinearInHoles) {
    print_left_out("million/free_at_random", "takes hours: each free looks at every hole");
  } else {
    print_figure("million/free_at_random", ns_of([&] { blocks.free_in_random_order(); }) / kMillion, "ns");
  }
}

template <Allocates Peer>
void measure_tails(Peer& peer, const Effort& effort) {
  constexpr std::size_t kPairs = 1'000'000;
  for (const int threads : {1, 2}) {
    double best = std::numeric_limits<double>::max();
    for (int run = 0; run < effort.tails; ++run) {
      best = std::min(best, ns_of_the_slowest_pairs(threads, kPairs, peer));
    }
    print_figure("tail/" + std::to_string(threads), best / 1e3, "us");
  }
}

// Plays a trace on a peer.
template <Allocates Peer>
class TracePlayer {
 public:
  TracePlayer(Peer& peer, const tools::Trace& trace) : peer_(peer), trace_(trace), live_(trace.slots) {
    for (std::size_t i = 0; i < trace.streams.size(); ++i) {
      streams_.push_back(trace.streams[i] ? peer.stream(static_cast<int>(i)) : nullptr);
    }
  }

  // Once from beginning to end, and frees what the trace leaves alive; calls used(stream) after each allocation.
  template <typename Used>
  void play(Used&& used) {
    for (const tools::TraceEvent& event : trace_.events) {
      Live& live = live_[event.slot];
      if (event.is_free()) {
        free(live);
      } else {
        const Stream stream = streams_[event.stream];
        live = {{peer_.allocate(event.bytes, stream), event.bytes}, stream};
        used(stream);
      }
    }
    for (Live& live : live_) {
      if (live.block.pointer) free(live);
    }
  }

 private:
  struct Live {
    LiveBlock block;
    Stream stream = nullptr;
  };

  void free(Live& live) { peer_.deallocate(std::exchange(live.block.pointer, nullptr), live.block.bytes, live.stream); }

  Peer& peer_;
  const tools::Trace& trace_;
  std::vector<Stream> streams_;
  std::vector<Live> live_;
};

// Prints the simulated runtime's counts while a trace was played.
template <Allocates Peer>
void print_counts(const Simulator& simulator, const tools::Trace& trace, const std::string& prefix) {
  if (!simulator.is_there()) {
    for (const char* figure : {"memory", "memory_calls", "event_calls"}) {
      print_left_out(prefix + figure, "only the simulated runtime counts");
    }
    return;
  }
  if constexpr (Peer::kFixedMemory) {
    print_left_out(prefix + "memory", "takes all its memory at once");
  } else {
    print_figure(prefix + "memory",
                 static_cast<double>(simulator.peak_used_bytes()) / static_cast<double>(tools::peak_live_bytes(trace)),
                 "x");
  }
  print_figure(prefix + "memory_calls", static_cast<double>(simulator.memory_calls()), "calls");
  print_figure(prefix + "event_calls", static_cast<double>(simulator.event_calls()), "calls");
}

// Memory and calls are those of one pass from an empty allocator on a device that lags as a real one does; the time is
// that of later passes, with no work on the device.
template <Allocates Peer>
void measure_trace(Peer& peer, const Effort& effort, const std::string& name) {
  const tools::Trace trace = tools::read_trace(std::string(CACHALOT_DATA_DIR) + "/traces/" + name + ".csv.gz");
  const Simulator simulator;
  TracePlayer<Peer> player(peer, trace);
  const std::string prefix = "trace/" + name + "/";
  player.play([&](Stream stream) { simulator.use(stream); });
  print_counts<Peer>(simulator, trace, prefix);
  check_cuda("cudaDeviceSynchronize", cudaDeviceSynchronize());
  player.play([](Stream) {});
  const double ns = best_within(effort.budget_ns, [&] { player.play([](Stream) {}); });
  print_figure(prefix + "time", ns / static_cast<double>(trace.events.size()), "ns");
}

// Only pairs, for callgrind to count their instructions: "pairs/<bytes>/<count>".
template <Allocates Peer>
void do_pairs(Peer& peer, const std::string& arguments) {
  std::size_t slash = 0;
  const std::size_t bytes = std::stoull(arguments, &slash);
  const long count = std::stol(arguments.substr(slash + 1));
  HotPair<Peer&> work(bytes, peer);
  for (long i = 0; i < count; ++i) work.pair();
}

// By name: a group, "trace/<name>" or "pairs/<bytes>/<count>". Returns false if there is none of this name.
template <Allocates Peer>
bool measure(Peer& peer, const Effort& effort, const std::string& name) {
  using Group = void (*)(Peer&, const Effort&);
  static constexpr std::pair<const char*, Group> kGroups[] = {{"hot_pair", measure_hot_pairs<Peer>},
                                                              {"churn", measure_churn<Peer>},
                                                              {"no_holes", measure_no_holes<Peer>},
                                                              {"holes", measure_holes<Peer>},
                                                              {"threads", measure_threads<Peer>},
                                                              {"handoff", measure_handoff<Peer>},
                                                              {"rmm_random", measure_rmm_random<Peer>},
                                                              {"million", measure_million<Peer>},
                                                              {"tail", measure_tails<Peer>}};
  for (const auto& [group, function] : kGroups) {
    if (name == group) {
      function(peer, effort);
      return true;
    }
  }
  if (name.starts_with("trace/")) {
    measure_trace(peer, effort, name.substr(6));
    return true;
  }
  if (name.starts_with("pairs/")) {
    do_pairs(peer, name.substr(6));
    return true;
  }
  return false;
}

}  // namespace cachalot::bench
