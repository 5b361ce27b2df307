// Measures taking one of many places of 4 KiB and giving it back, alike for every subject, which has
//
//   Held take();              one place, on the subject's one stream
//   void give_back(Held&);    from any thread; a Held may be made without a value
//   std::size_t host_bytes_each();   host memory that the subject spends on each of kPoolSlots places; asked last
#pragma once

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

#include "bench/workloads_many.h"

namespace cachalot::bench {

inline constexpr std::size_t kPooledBytes = 4 * kKiB;
inline constexpr std::size_t kPoolSlots = 4096;
inline constexpr int kPoolPairs = 2'000'000;
inline constexpr int kPoolShots = 7;  // the best counts

template <typename Shot>
double best_of_pool_shots(Shot&& shot) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kPoolShots; ++i) best = std::min(best, shot() / kPoolPairs);
  return best;
}

// Nanoseconds a pair of one of `threads` that each take and give back; all on one stream.
template <typename Subject>
double ns_a_pair_of_pool(Subject& subject, int threads) {
  return best_of_pool_shots([&] {
    return ns_of_threads(threads, [&](int, auto&& start_together) {
      start_together();
      for (int i = 0; i < kPoolPairs; ++i) {
        auto held = subject.take();
        subject.give_back(held);
      }
    });
  });
}

// The processors of a hand-over's two threads; `any`: the system's choice, which changes on the way.
enum class Placement { any, one_processor, two_processors };

// Keeps the thread with this number on the first or second processor that the process may use.
inline void place_thread(int number, Placement placement) {
  if (placement == Placement::any) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  int left = placement == Placement::two_processors ? number : 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    sched_setaffinity(0, sizeof(only), &only);
    return;
  }
}

// Nanoseconds for each that one thread takes and another gives back.
template <typename Subject>
double ns_a_handover(Subject& subject, Placement placement = Placement::any) {
  using Held = typename Subject::Held;
  constexpr std::size_t kBoxes = 1024;  // more than a Ring has places
  return best_of_pool_shots([&] {
    Ring ring;
    std::vector<Held> boxes(kBoxes);
    return ns_of_threads(2, [&](int index, auto&& start_together) {
      place_thread(index, placement);
      start_together();
      if (index == 0) {
        for (std::size_t i = 0; i < kPoolPairs; ++i) {
          boxes[i % kBoxes] = subject.take();
          ring.put(&boxes[i % kBoxes]);
        }
      } else {
        for (int i = 0; i < kPoolPairs; ++i) subject.give_back(*static_cast<Held*>(ring.take()));
      }
    });
  });
}

// A row of the table of costs.
template <typename Subject>
void print_costs(std::string_view name, Subject& subject) {
  const double alone = ns_a_pair_of_pool(subject, 1);
  const double together = ns_a_pair_of_pool(subject, 2);
  fmt::print("| {} | {:.1f} | {:.2f}x | {:.1f} | {} | {} |\n", name, alone, 2 * alone / together,
             ns_a_handover(subject), subject.host_bytes_each(), sizeof(typename Subject::Held));
}

// A row of the table of hand-overs.
template <typename Subject>
void print_handovers(std::string_view name, Subject& subject) {
  fmt::print("| {} | {:.1f} | {:.1f} | {:.1f} |\n", name, ns_a_handover(subject),
             ns_a_handover(subject, Placement::one_processor), ns_a_handover(subject, Placement::two_processors));
}

}  // namespace cachalot::bench
