// Host time of allocate + deallocate: of a size in the cache, among live blocks, among holes, on several threads.
// Names: hot_pair/<bytes>, churn/4096, holes/<holes>, holes_churn/<holes>, threads/threads:<n>.
#include <memory>

#include "bench/bench_main.h"

namespace cachalot::bench {
namespace {

void hot_pair(benchmark::State& state) {
  HotPair work(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) work.pair();
}
BENCHMARK(hot_pair)->Name("hot_pair")->Arg(512)->Arg(4 << 10)->Arg(1 << 20)->Arg(8 << 20);

// Sizes from 512 B to 16 MiB.
void churn(benchmark::State& state) {
  Churn work(static_cast<std::size_t>(state.range(0)), 512, 16 * kMiB);
  for (auto _ : state) work.pair();
}
BENCHMARK(churn)->Name("churn")->Arg(4096);

void holes(benchmark::State& state) {
  Holes work(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) work.pair();
}
BENCHMARK(holes)->Name("holes")->Arg(0)->Arg(4096)->Arg(65536);

// A time of its own is one pair's.
void holes_churn(benchmark::State& state) {
  Holes work(static_cast<std::size_t>(state.range(0)), 4096);
  while (state.KeepRunningBatch(static_cast<benchmark::IterationCount>(work.pairs_a_churn()))) work.churn();
}
BENCHMARK(holes_churn)->Name("holes_churn")->Arg(4096)->Arg(65536);

// A stream for each thread, one allocator and device for all.
void threads(benchmark::State& state) {
  static std::unique_ptr<CachingAllocator> allocator;
  if (state.thread_index() == 0) allocator = make_allocator();
  const auto stream = reinterpret_cast<Stream>(static_cast<Address>(state.thread_index() + 1) << 12);
  for (auto _ : state) allocator->deallocate(allocator->allocate(4 * kKiB, 0, stream));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(threads)->Name("threads")->Threads(1)->Threads(2)->Threads(4)->UseRealTime();

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) { return cachalot::bench::run_benchmarks(argc, argv); }
