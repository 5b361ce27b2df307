// Measures the time of a server's allocations at the tail, with the driver's share: recorded serving programs, a table
// for each.
//
//   serving [<trace> ...]    prints the tables of data/traces/serve_kv.csv.gz and data/traces/programs/serving_batches.csv.gz,
//                            or of these traces
//
// An allocation takes the host time of the call and the time of its driver calls by the published model of latencies
// (simulator/device/device_timing.cpp), which the device's clock shows. Each row is one pass over the trace:
//   cold        on a fresh allocator
//   warmed up   on an allocator that has played the trace once
//   reserved    on a fresh allocator that has reserved the peak of another pass
// "driver" counts the allocations that call the driver to get or move memory.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "bench/timing.h"
#include "bench/workloads.h"
#include "cachalot/errors.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::bench {
namespace {

constexpr double kRanks[] = {0.5, 0.99, 0.999, 0.9999, 1};

// Nanoseconds of each allocation of a pass, and how many of these had a driver call.
struct Pass {
  std::vector<double> ns;
  std::size_t in_driver = 0;
};

Pass play(tools::ReplayWorld& world, const tools::Trace& trace) {
  Pass pass;
  for (const tools::TraceEvent& event : trace.events) {
    const std::int64_t driver_start = world.device().clock_ns();
    const auto start = std::chrono::steady_clock::now();
    if (!world.play(event)) throw InvalidArgument("the trace does not fit the simulated device");
    const std::chrono::duration<double, std::nano> host = std::chrono::steady_clock::now() - start;
    if (event.is_free()) continue;
    const auto driver = static_cast<double>(world.device().clock_ns() - driver_start);
    pass.ns.push_back(host.count() + driver);
    pass.in_driver += driver > 0 ? 1 : 0;
  }
  world.free_all();
  return pass;
}

void print_row(const std::string& config, const char* state, Pass pass) {
  std::ranges::sort(pass.ns);
  fmt::print("{:<22} {:<10} {:>9}", config, state, pass.in_driver);
  for (const double rank : kRanks) {
    fmt::print(" {:>9.2f}", pass.ns[place_of_rank(rank, pass.ns.size())] / 1000);
  }
  fmt::print("\n");
}

void print_rows(const tools::Trace& trace, const std::string& config, bool reserves) {
  tools::ReplayOptions options;
  options.config = config;
  std::size_t peak = 0;
  {
    tools::ReplayWorld world(trace, options);
    print_row(config, "cold", play(world, trace));
    print_row(config, "warmed up", play(world, trace));
    peak = static_cast<std::size_t>(world.allocator().memory_stats().reserved_bytes.all.peak);
  }
  if (!reserves) return;
  tools::ReplayWorld world(trace, options);
  world.allocator().reserve(peak);
  print_row(config, "reserved", play(world, trace));
}

void print_table(const std::string& path) {
  const tools::Trace trace = tools::read_trace(path);
  fmt::print("{}\n{:<22} {:<10} {:>9}", path.substr(path.rfind('/') + 1), "µs", "", "driver");
  for (const char* rank : {"p50", "p99", "p99.9", "p99.99", "max"}) fmt::print(" {:>9}", rank);
  fmt::print("\n");
  print_rows(trace, "heap:segments", false);
  print_rows(trace, "heap:pages", true);
  fmt::print("\n");
}

int run(std::vector<std::string> paths) {
  if (paths.empty()) {
    paths = {CACHALOT_DATA_DIR "/traces/serve_kv.csv.gz", CACHALOT_DATA_DIR "/traces/programs/serving_batches.csv.gz"};
  }
  start_a_thread();
  try {
    for (const std::string& path : paths) print_table(path);
  } catch (const std::exception& error) {
    fmt::print(stderr, "serving: {}\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) { return cachalot::bench::run({argv + std::min(argc, 1), argv + argc}); }
