// Compares the allocator's targets with its figures on this machine. Times are the best of many short runs, so that
// other work on the machine disturbs them little.
//
//   targets [<group> ...]    prints the table, or only the rows of these groups: hot_pair, churn, ... (kGroups)
//   targets --check ...      the same, and fails if a target is missed
//   targets pairs <bytes> <count>    only allocates and frees, for bench/instructions.sh to count instructions
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/timing.h"
#include "bench/workloads.h"
#include "bench/workloads_many.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::max();

// Returns the time of one pair, over runs of about a millisecond.
template <typename Work>
double ns_a_pair(Work& work) {
  constexpr int kPairs = 20000;
  return best_of(300,
                 [&] {
                   for (int i = 0; i < kPairs; ++i) work.pair();
                 }) /
         kPairs;
}

class Table {
 public:
  Table() { row("", "target", "measured", "", "PyTorch 2.11"); }

  void at_most(const std::string& name, double measured, double target, const char* unit, const char* torch = "") {
    const bool met = measured <= target;
    missed_ += !met;
    row(name, fmt::format("<= {:g} {}", target, unit), fmt::format("{:.2f} {}", measured, unit), met ? "met" : "MISSED",
        torch);
  }
  void at_least(const std::string& name, double measured, double target, const char* unit, const char* torch = "") {
    const bool met = measured >= target;
    missed_ += !met;
    row(name, fmt::format(">= {:g} {}", target, unit), fmt::format("{:.2f} {}", measured, unit), met ? "met" : "MISSED",
        torch);
  }
  void figure(const std::string& name, double measured, const char* unit, const char* torch = "") {
    row(name, "-", fmt::format("{:.2f} {}", measured, unit), "", torch);
  }
  int missed() const { return missed_; }

 private:
  static void row(const std::string& name, const std::string& target, const std::string& measured,
                  const std::string& verdict, const std::string& torch) {
    fmt::print("{:<44} {:>14} {:>14}  {:<7} {:>12}\n", name, target, measured, verdict, torch);
    std::fflush(stdout);
  }

  int missed_ = 0;
};

void measure_hot_pairs(Table& table) {
  for (const std::size_t bytes : {std::size_t{512}, 4 * kKiB, kMiB, 8 * kMiB}) {
    HotPair work(bytes);
    table.at_most(fmt::format("hot_pair/{}", bytes), ns_a_pair(work), 40, "ns", "150-220");
  }
}

class PairOnStream {
 public:
  PairOnStream(std::shared_ptr<Device> device, Stream stream, bool immortal)
      : allocator_({std::move(device)}, options(immortal)), stream_(stream) {}
  void pair() { allocator_.deallocate(allocator_.allocate(4 * kKiB, 0, stream_), 4 * kKiB, 0, stream_); }

 private:
  static Options options(bool immortal) {
    Options options;
    options.immortal_streams = immortal;
    return options;
  }
  CachingAllocator allocator_;
  Stream stream_;
};

// Measures the cost of a stream that may be destroyed, beside that of asking the device for its identity.
void measure_mortal_streams(Table& table) {
  const auto device = std::make_shared<SimulatedDevice>();
  const Stream stream = device->new_stream();
  PairOnStream immortal(device, stream, true);
  PairOnStream mortal(device, stream, false);
  struct {
    Device& device;
    Stream stream;
    void pair() { asked += device.stream_id(stream); }
    std::uint64_t asked = 0;
  } question{*device, stream};
  const double extra = ns_a_pair(mortal) - ns_a_pair(immortal) - ns_a_pair(question);
  table.at_most("mortal_stream/4096, beside stream_id", extra, 5, "ns");
}

void measure_churn(Table& table) {
  Churn work(4096, 512, 16 * kMiB);
  table.at_most("churn/4096", ns_a_pair(work), 110, "ns", "460-550");
}

void measure_holes(Table& table) {
  Holes none(0);
  const double without = ns_a_pair(none);
  table.figure("holes/0", without, "ns");
  Holes some(4096);
  table.figure("holes/4096", ns_a_pair(some), "ns");
  Holes many(65536);
  const double with = ns_a_pair(many);
  table.figure("holes/65536", with, "ns");
  table.at_most("holes/65536 to holes/0", with / without, 1.5, "x");
  Holes churned(65536, 4096);
  const double churn = best_of(300, [&] { churned.churn(); }) / static_cast<double>(churned.pairs_a_churn());
  table.at_most("holes_churn/65536", churn, 200, "ns");
}

void measure_rmm(Table& table) {
  RmmRandom work(100000, 1);
  table.at_most("rmm_random/100000/1", best_of(10, [&] { work.sequence(); }) / 1e6, 20, "ms");
}

void measure_trace(Table& table, const char* name, double target) {
  const tools::Trace trace = tools::read_trace(fmt::format("{}/traces/{}.csv.gz", CACHALOT_DATA_DIR, name));
  const int passes = static_cast<int>(std::clamp<std::size_t>(20'000'000 / trace.events.size(), 10, 200));
  const double ns = static_cast<double>(tools::time_best_pass(trace, {}, passes));
  table.at_most(fmt::format("replay/{}, an event", name), ns / static_cast<double>(trace.events.size()), target, "ns");
}

// Million pairs a second of threads with a stream each, the best of several shots. One and two threads take turns, so
// that other work on the machine disturbs both alike.
void measure_threads(Table& table) {
  constexpr int kShots = 30;
  constexpr int kPairs = 400000;
  ThreadPairs work;
  double one = 0;
  double two = 0;
  for (int shot = 0; shot < kShots; ++shot) {
    one = std::max(one, work.shot(1, kPairs));
    two = std::max(two, work.shot(2, kPairs));
  }
  table.figure("threads:1", one, "M pairs/s", "4.0");
  table.figure("threads:2", two, "M pairs/s", "3.7");
  table.at_least("threads:2 to threads:1", two / one, 0.9, "x", "0.93");
}

void measure_many(Table& table) {
  constexpr std::size_t kBlocks = 1000000;
  constexpr int kRuns = 3;
  double first = kNever;
  double again = kNever;
  double in_order = kNever;
  double random = kNever;
  for (int run = 0; run < kRuns; ++run) {
    ManyBlocks blocks(kBlocks);
    first = std::min(first, ns_of([&] { blocks.allocate_all(); }));
    for (int round = 0; round < 2; ++round) {
      in_order = std::min(in_order, ns_of([&] { blocks.free_in_order(); }));
      again = std::min(again, ns_of([&] { blocks.allocate_all(); }));
      random = std::min(random, ns_of([&] { blocks.free_in_random_order(); }));
      again = std::min(again, ns_of([&] { blocks.allocate_all(); }));
    }
  }
  table.at_most("million/grow, a block", first / kBlocks, 250, "ns", "970");
  table.at_most("million/grow again, a block", again / kBlocks, 120, "ns", "970");
  table.at_most("million/free in order, a block", in_order / kBlocks, 120, "ns", "680");
  table.at_most("million/free at random, a block", random / kBlocks, 2500, "ns", "6250");
}

// Microseconds below which all but one in 10,000 pairs stay; the best of some runs.
double tail_us(int threads) {
  constexpr std::size_t kPairs = 1000000;
  constexpr int kRuns = 10;
  double best = kNever;
  for (int run = 0; run < kRuns; ++run) {
    OwnAllocator allocator;
    best = std::min(best, ns_of_the_slowest_pairs(threads, kPairs, allocator) / 1e3);
  }
  return best;
}

void measure_tails(Table& table) {
  table.at_most("pair, 99.99th percentile", tail_us(1), 5, "us");
  table.at_most("pair, 99.99th percentile, two threads", tail_us(2), 60, "us");
}

// A block may cost 160 bytes or 1 % of the memory it covers, whichever is more: 1 % of 1 KiB would be 10 bytes.
void measure_metadata(Table& table) {
  constexpr std::size_t kBlocks = 1000000;
  constexpr std::size_t kCovered = std::size_t{256} << 30;
  for (const std::size_t bytes : {kKiB, 4 * kKiB - 512, 8 * kKiB, 16 * kKiB, 64 * kKiB, kMiB, 20 * kMiB}) {
    const auto allocator = make_allocator();
    const std::size_t blocks = std::min(kBlocks, kCovered / bytes);
    for (std::size_t i = 0; i < blocks; ++i) allocator->allocate(bytes);
    const double a_block = static_cast<double>(allocator->metadata_bytes()) / static_cast<double>(blocks);
    table.at_most(fmt::format("metadata/{}, a block", bytes), a_block,
                  std::max(160.0, 0.01 * static_cast<double>(bytes)), "B");
  }
}

// Measures cachalot's own time: the driver's comes on top, and a simulated device takes none. With a GPU it is the
// whole time.
void measure_startup(Table& table) {
  const bool simulated = cuda_devices().empty();
  double construction = kNever;
  double both = kNever;
  for (int run = 0; run < 5; ++run) {
    std::vector<std::shared_ptr<Device>> devices = cuda_devices();
    if (simulated) devices.push_back(std::make_shared<SimulatedDevice>());
    std::unique_ptr<CachingAllocator> allocator;
    const double made = ns_of([&] { allocator = std::make_unique<CachingAllocator>(std::move(devices)); });
    const double first = ns_of([&] { allocator->allocate(kMiB); });
    construction = std::min(construction, made / 1e6);
    both = std::min(both, (made + first) / 1e6);
  }
  table.figure("startup/construction", construction, "ms");
  if (simulated) {
    table.at_most("startup/and the first allocation", both, 5, "ms");
  } else {
    table.figure("startup/and the first allocation, on a GPU", both, "ms");
  }
}

void measure_traces(Table& table) {
  measure_trace(table, "gpt2_varlen", 36);
  measure_trace(table, "moe", 36);
  measure_trace(table, "serve_kv", 26);
}

struct Group {
  std::string_view name;
  void (*measure)(Table&);
};
// Startup comes first, before there is a second thread: as in a program that starts.
constexpr Group kGroups[] = {
    {"startup", measure_startup}, {"hot_pair", measure_hot_pairs}, {"mortal_stream", measure_mortal_streams},
    {"churn", measure_churn},     {"holes", measure_holes},        {"rmm_random", measure_rmm},
    {"replay", measure_traces},   {"metadata", measure_metadata},  {"threads", measure_threads},
    {"million", measure_many},    {"tails", measure_tails},
};

// Prints the targets of the named groups; of all if none is named.
int print_targets(bool check, const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    if (std::ranges::find(kGroups, name, &Group::name) == std::end(kGroups)) {
      fmt::print(stderr, "targets: there is no group '{}'\n", name);
      return 2;
    }
  }
  Table table;
  for (const Group& group : kGroups) {
    if (names.empty() || std::ranges::count(names, group.name) > 0) group.measure(table);
    if (group.measure == measure_startup) start_a_thread();
  }
  return check && table.missed() > 0 ? 1 : 0;
}

int allocate_pairs(std::size_t bytes, long count) {
  start_a_thread();
  HotPair work(bytes);
  for (long i = 0; i < count; ++i) work.pair();
  return 0;
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  std::vector<std::string_view> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "pairs") {
    return cachalot::bench::allocate_pairs(cachalot::parse_bytes(arguments[1]), std::atol(argv[3]));
  }
  const bool check = std::erase(arguments, "--check") > 0;
  return cachalot::bench::print_targets(check, arguments);
}
