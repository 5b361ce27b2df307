// Measures the memory lost in a churn of small objects and in one of large ones: a table of own figures, with their
// formulas, beside a published claim that has none.
#include <fmt/format.h>

#include <cstdint>

#include "bench/workloads.h"

namespace cachalot::bench {
namespace {

struct Objects {
  const char* name;
  std::size_t live;
  std::size_t low;
  std::size_t high;
  const char* claim;
};

double percent(double part) { return 100 * part; }

void print_row(const Objects& objects) {
  Churn work(objects.live, objects.low, objects.high);
  for (int i = 0; i < 200000; ++i) work.pair();
  const Fragmentation now = (*work.allocator()).fragmentation();
  const double unused = 1 - static_cast<double>(now.requested_bytes) / static_cast<double>(now.reserved_bytes);
  fmt::print("{:<28} {:>10.2f} {:>10.2f} {:>14.2f} {:>9.4f} {:>12.4f} {:>11}\n", objects.name, percent(now.internal),
             percent(now.external), percent(unused), now.reserved_ratio, now.peak_ratio, objects.claim);
}

void print_table() {
  fmt::print("Fragmentation after 200,000 pairs of churn, sizes log-uniform, bytes as memory_stats() counts them\n\n");
  fmt::print("{:<28} {:>10} {:>10} {:>14} {:>9} {:>12} {:>11}\n", "objects", "internal %", "external %", "not in use %",
             "res/alloc", "peak res/req", "claimed");
  print_row({"4096 of 512 B to 1 MiB", 4096, 512, kMiB, "8 %"});
  print_row({"256 of 1 MiB to 64 MiB", 256, kMiB, 64 * kMiB, "22 %"});
  fmt::print(
      "\ninternal      1 - requested / allocated              lost inside blocks\n"
      "external      1 - largest free block / free          how scattered the cached memory is\n"
      "not in use    1 - requested / reserved               everything held that no request asked for\n"
      "res/alloc     reserved / allocated\n"
      "peak res/req  peak reserved / peak requested\n"
      "claimed       a published pair of figures, given without a formula: no row of ours can be said to match it\n");
}

}  // namespace
}  // namespace cachalot::bench

int main() { cachalot::bench::print_table(); }
