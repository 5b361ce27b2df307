// What the allocator must reach, what it reaches on this machine, and whether that is enough. Times are the best of many
// short runs, so that other work on the machine disturbs them little.
//
//   targets            prints the table
//   targets --check    the same, and fails if a target is missed
//   targets pairs <bytes> <count>    only allocates and frees, for bench/instructions.sh to count instructions
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "bench/timing.h"
#include "bench/workloads.h"
#include "bench/workloads_many.h"
#include "tools/replay.h"
#include "tools/trace_reader.h"

namespace cachalot::bench {
namespace {

// Of one pair, over runs of about a millisecond.
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

// Million pairs a second of `count` threads with a stream each: the best of several shots.
double throughput(int count) {
  ThreadPairs work;
  constexpr int kPairs = 400000;
  double best = 0;
  for (int shot = 0; shot < 20; ++shot) best = std::max(best, work.shot(count, kPairs));
  return best;
}

void measure_threads(Table& table) {
  table.figure("threads:1", throughput(1), "M pairs/s", "4.0");
  table.figure("threads:2", throughput(2), "M pairs/s", "3.7");
  table.figure("threads:4", throughput(4), "M pairs/s", "4.3");
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

int print_targets(bool check) {
  start_a_thread();
  Table table;
  measure_hot_pairs(table);
  measure_churn(table);
  measure_holes(table);
  measure_rmm(table);
  measure_trace(table, "gpt2_varlen", 36);
  measure_trace(table, "moe", 36);
  measure_trace(table, "serve_kv", 26);
  measure_metadata(table);
  measure_threads(table);
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
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "pairs") {
    return cachalot::bench::allocate_pairs(cachalot::parse_bytes(arguments[1]), std::atol(argv[3]));
  }
  return cachalot::bench::print_targets(std::ranges::count(arguments, "--check") > 0);
}
