// Host time of the replay of each shipped trace: names replay/<trace>, counter ns_per_event. Every iteration plays the
// trace on an allocator that has played it before; the frees of blocks still alive at its end are not counted.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/bench_main.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::bench {
namespace {

void replay(benchmark::State& state, const std::string& path) {
  const tools::Trace trace = tools::read_trace(path);
  tools::ReplayWorld world(trace, {});
  double seconds = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (const tools::TraceEvent& event : trace.events) world.play(event);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(elapsed.count());
    seconds += elapsed.count();
    world.free_all();
  }
  const double events = static_cast<double>(trace.events.size()) * static_cast<double>(state.iterations());
  state.counters["ns_per_event"] = 1e9 * seconds / events;
}

void register_traces() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(CACHALOT_DATA_DIR "/traces")) {
    if (entry.path().extension() == ".gz") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  for (const auto& path : paths) {
    const std::string name = "replay/" + path.stem().stem().string();
    benchmark::RegisterBenchmark(name.c_str(), replay, path.string())->UseManualTime()->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  cachalot::bench::register_traces();
  return cachalot::bench::run_benchmarks(argc, argv);
}
