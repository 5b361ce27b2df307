// The main function of the Google Benchmark programs.
#pragma once

#include <benchmark/benchmark.h>

#include "bench/workloads.h"

namespace cachalot::bench {

inline int run_benchmarks(int argc, char** argv) {
  start_a_thread();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace cachalot::bench
