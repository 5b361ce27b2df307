// Measures the cost of the guard for the host, a malloc and a free of one size in turn: a markdown table. The kernels that
// write and compare patterns are no more than calls here, and the device does no work, so that only the allocator's own time
// is left; on a GPU a free waits for queued work as well.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench/timing.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/guard.h"
#include "cachalot/simulated_device.h"

namespace cachalot::bench {
namespace {

constexpr std::array kOptions = {"", "guard:True", "debug:True", "debug:True,guard:False"};
constexpr std::array kDepths = {5, 40};  // calls between main and the allocator
constexpr double kBudgetNs = 1e9;

// Finds every pattern as it was. The guard uses the complement of a seed to ask whether kernels compute at all.
class NoKernels final : public Kernels {
  void fill(Stream, Span<const PatternSpan>) override {}
  std::vector<PatternMismatch> verify(Stream, Span<const PatternSpan> spans) override {
    if (spans[0].seed >> 63 == 0) return {};
    return {{.span = 0, .offset = 0}};
  }
  void move(Stream, Span<const BlockMove>) override {}
};

struct Pairs {
  explicit Pairs(const char* options)
      : allocator({device()}, parse_options(options),
                  guard_factory([](const std::shared_ptr<Device>&) { return std::make_unique<NoKernels>(); })) {}
  static std::shared_ptr<Device> device() {
    SimulatedDevice::Config config;
    config.memory_bytes = 64 * kGiB;
    config.latency = LatencyModel::none();
    return std::make_shared<SimulatedDevice>(config);
  }
  void pair() { allocator.deallocate(allocator.allocate(4 * kKiB)); }

  CachingAllocator allocator;
};

// Measures as deep in calls as a program is.
[[gnu::noinline]] double ns_at_depth(Pairs& pairs, int depth) {
  double volatile ns = depth > 0 ? ns_at_depth(pairs, depth - 1) : ns_a_pair_within(kBudgetNs, pairs);
  return ns;
}

void print_table() {
  fmt::print("| options |");
  for (const int depth : kDepths) fmt::print(" ns a pair, {} calls deep |", depth);
  fmt::print("\n|---|---:|---:|\n");
  for (const char* const options : kOptions) {
    fmt::print("| {} |", *options == '\0' ? "none" : fmt::format("`{}`", options));
    for (const int depth : kDepths) {
      Pairs pairs(options);
      fmt::print(" {:.0f} |", ns_at_depth(pairs, depth));
    }
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace cachalot::bench

int main() { cachalot::bench::print_table(); }
