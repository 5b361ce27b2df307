// What it costs to move live memory together, and what that gives back: one table for a RelocatableHeap over both heaps
// and for a TensorPool. On a simulated device, with a mover that copies nothing: the copies are the GPU's time, not the
// host's, which is the processor's, so that other programs on the machine disturb it little.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "bench/workloads.h"
#include "cachalot/relocatable_heap.h"
#include "cachalot/tensor_pool.h"

namespace cachalot::bench {
namespace {

constexpr std::size_t kBytes = 4 * kGiB;  // allocated at first
constexpr int kShots = 7;                 // the fastest counts

class NoCopies final : public Kernels {
  void fill(Stream, Span<const PatternSpan>) override {}
  std::vector<PatternMismatch> verify(Stream, Span<const PatternSpan>) override { return {}; }
  void move(Stream, Span<const BlockMove>) override {}
};

// Keeps one in `each`, at random.
template <typename Held>
void thin_out(std::vector<Held>& held, std::size_t each, std::mt19937_64& random) {
  std::ranges::shuffle(held, random);
  held.erase(held.begin() + static_cast<std::ptrdiff_t>(held.size() / each), held.end());
}

double processor_ns() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct Outcome {
  std::size_t in_use = 0;
  std::size_t before = 0;  // reserved once empty_cache has given back what it can
  std::size_t after = 0;
  CompactReport report;
  double ns = 0;
};

// A world's `compact`, in a world of its own for each shot.
template <typename MakeWorld>
Outcome best_outcome(MakeWorld&& make_world) {
  Outcome best;
  for (int shot = 0; shot < kShots; ++shot) {
    auto world = make_world();
    Outcome outcome;
    outcome.in_use = world.in_use();
    world.allocator->empty_cache();
    outcome.before = world.allocator->memory_reserved();
    const double start = processor_ns();
    outcome.report = world.compact();
    outcome.ns = processor_ns() - start;
    world.allocator->empty_cache();
    outcome.after = world.allocator->memory_reserved();
    if (shot == 0 || outcome.ns < best.ns) best = outcome;
  }
  return best;
}

struct HeapWorld {
  HeapWorld(const std::string& options, const std::vector<std::size_t>& sizes, std::size_t each)
      : allocator(make_allocator(options)) {
    std::mt19937_64 random(1);
    for (std::size_t bytes = 0, i = 0; bytes < kBytes; bytes += sizes[i % sizes.size()], ++i) {
      live.push_back(heap.allocate(sizes[i % sizes.size()]));
    }
    thin_out(live, each, random);
  }
  static std::unique_ptr<CachingAllocator> make_allocator(const std::string& options) {
    std::vector<std::shared_ptr<Device>> devices = {std::make_shared<SimulatedDevice>()};
    return std::make_unique<CachingAllocator>(std::move(devices), parse_options(options));
  }
  std::size_t in_use() const {
    std::size_t bytes = 0;
    for (const Relocatable& handle : live) bytes += handle.bytes();
    return bytes;
  }
  CompactReport compact() { return heap.compact(); }

  std::unique_ptr<CachingAllocator> allocator;
  RelocatableHeap heap{*allocator, 0, std::make_shared<NoCopies>()};
  std::vector<Relocatable> live;
};

struct PoolWorld {
  PoolWorld(std::size_t bytes, std::size_t step, std::size_t each)
      : allocator(HeapWorld::make_allocator("")),
        pool(std::make_unique<TensorPool>(
            *allocator, TensorSpec{{static_cast<std::int64_t>(bytes)}, DType::int8},
            TensorPoolOptions{.growth_step = step, .mover = std::make_shared<NoCopies>()})) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < kBytes / bytes; ++i) live.push_back(pool->acquire());
    thin_out(live, each, random);
  }
  std::size_t in_use() const { return live.size() * live.front().bytes(); }
  CompactReport compact() { return pool->compact(); }

  std::unique_ptr<CachingAllocator> allocator;
  std::unique_ptr<TensorPool> pool;
  std::vector<PooledTensor> live;
};

double mib(std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

void print_row(std::string_view where, std::string_view what, std::size_t each, const Outcome& outcome) {
  const auto [blocks, bytes, freed] = outcome.report;
  const std::string ns = blocks == 0 ? "-" : fmt::format("{:.0f}", outcome.ns / static_cast<double>(blocks));
  fmt::print("| {} | {} | 1 in {} | {:.0f} | {:.0f} | {:.0f} | {} | {:.0f} | {} | {:.2f} |\n", where, what, each,
             mib(outcome.in_use), mib(outcome.before), mib(outcome.after), blocks, mib(bytes), ns, outcome.ns / 1e6);
}

void print_heaps(std::string_view what, const std::vector<std::size_t>& sizes, std::size_t each) {
  for (const char* options : {"heap:segments", "heap:pages", "heap:pages,page_size_mb:2"}) {
    print_row(options, what, each, best_outcome([&] { return HeapWorld(options, sizes, each); }));
  }
}

void print_table() {
  fmt::print(
      "| where | blocks of | live | in use, MiB | reserved, MiB | after compact | moved | MiB | ns a move | ms |\n");
  fmt::print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const std::size_t each : {std::size_t{2}, std::size_t{8}}) {
    print_heaps("300 KiB", {300 * kKiB}, each);
    print_heaps("3 MiB", {3 * kMiB}, each);
    print_heaps("32 KiB to 32 MiB", log_uniform_sizes(32 * kKiB, 32 * kMiB, 1000, 5), each);
    for (const std::size_t step : {std::size_t{16}, std::size_t{64}}) {
      print_row(fmt::format("TensorPool, growth_step {}", step), "300 KiB", each,
                best_outcome([&] { return PoolWorld(300 * kKiB, step, each); }));
    }
  }
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  if (argc > 1) {
    fmt::print(stderr, "compact: unknown argument '{}': it takes none\n", argv[1]);
    return 2;
  }
  cachalot::bench::print_table();
}
