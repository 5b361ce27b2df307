// Measures the time of work: the best of several runs, so that other work on the machine disturbs the figure little.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>

namespace cachalot::bench {

using Clock = std::chrono::steady_clock;

template <typename Work>
double ns_of(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// The place in a sorted list of `count` of what the part `rank` of all stay below; the last for 1.
inline std::size_t place_of_rank(double rank, std::size_t count) {
  return std::max<std::size_t>(static_cast<std::size_t>(std::ceil(rank * static_cast<double>(count))), 1) - 1;
}

// Nanoseconds of the fastest of `runs`.
template <typename Work>
double best_of(int runs, Work&& work) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < runs; ++i) best = std::min(best, ns_of(work));
  return best;
}

// Nanoseconds of the fastest of at least one run, and of as many as begin within `budget_ns`.
template <typename Work>
double best_within(double budget_ns, Work&& work) {
  double best = std::numeric_limits<double>::max();
  for (double spent = 0; spent < budget_ns;) {
    const double ns = ns_of(work);
    best = std::min(best, ns);
    spent += ns;
  }
  return best;
}

// Returns the time of one pair, over runs of about half a millisecond; at least one pair.
template <typename Work>
double ns_a_pair_within(double budget_ns, Work& work) {
  constexpr double kRunNs = 5e5;
  const auto pairs = [&work](int count) {
    for (int i = 0; i < count; ++i) work.pair();
  };
  int count = 1;
  while (count < (1 << 20) && ns_of([&] { pairs(count); }) < kRunNs) count *= 2;
  return best_within(budget_ns, [&] { pairs(count); }) / count;
}

}  // namespace cachalot::bench
