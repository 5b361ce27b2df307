// RMM's random-allocation benchmark on our allocator: names rmm_random/<allocations>/<largest MiB>, ms a sequence.
#include "bench/bench_main.h"

namespace cachalot::bench {
namespace {

void rmm_random(benchmark::State& state) {
  RmmRandom work(static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1)));
  for (auto _ : state) work.sequence();
  state.counters["peak_reserved_MiB"] = static_cast<double>((*work.allocator()).max_memory_reserved()) / kMiB;
}
BENCHMARK(rmm_random)
    ->Name("rmm_random")
    ->ArgsProduct({{1000, 10000, 100000}, {1, 4, 64, 1024}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) { return cachalot::bench::run_benchmarks(argc, argv); }
