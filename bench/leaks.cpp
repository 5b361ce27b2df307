// Measures the cost of watching for leaks: host time of allocate + deallocate of 4 KiB without a watcher, with a leak detector and
// with a track, at some depths of the stack; and of a call stack alone. Names: pair/<watch>/<heap>/depth:<frames>,
// stack/depth:<frames>.
#include <memory>
#include <optional>
#include <string>

#include "bench/bench_main.h"
#include "cachalot/leak_detector.h"

namespace cachalot::bench {
namespace {

// Runs `work` below `frames` more frames of the stack.
template <typename Work>
[[gnu::noinline]] void below(int frames, Work&& work) {
  if (frames > 0) {
    below(frames - 1, work);
  } else {
    work();
  }
  benchmark::ClobberMemory();  // the call above is not a tail call
}

enum class Watch { off, detector, track };

void pair(benchmark::State& state, Watch watch, const char* heap) {
  CachingAllocator allocator({std::make_shared<SimulatedDevice>()}, parse_options(heap));
  std::optional<LeakDetector> detector;
  std::optional<AllocationTrack> track;
  if (watch == Watch::detector) detector.emplace(allocator);
  if (watch == Watch::track) track.emplace(allocator);
  below(static_cast<int>(state.range(0)), [&] {
    for (auto _ : state) allocator.deallocate(allocator.allocate(4 * kKiB));
  });
}

void stack(benchmark::State& state) {
  below(static_cast<int>(state.range(0)), [&] {
    for (auto _ : state) benchmark::DoNotOptimize(CallStack::capture());
  });
}
BENCHMARK(stack)->ArgName("depth")->Arg(0)->Arg(20)->Arg(50);

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  using cachalot::bench::Watch;
  for (const char* heap : {"heap:segments", "heap:pages"}) {
    for (const auto& [name, watch] :
         {std::pair{"off", Watch::off}, std::pair{"detector", Watch::detector}, std::pair{"track", Watch::track}}) {
      benchmark::RegisterBenchmark(("pair/" + std::string(name) + "/" + heap).c_str(), cachalot::bench::pair, watch,
                                   heap)
          ->ArgName("depth")
          ->Arg(0)
          ->Arg(20);
    }
  }
  return cachalot::bench::run_benchmarks(argc, argv);
}
