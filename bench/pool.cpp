// Tensor pools: what a tensor costs beside an allocation, and what a pool saves. Two tables, printed by one command; on
// a simulated device, so that the driver costs next to nothing.
#include "cachalot/pool_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/workloads_many.h"
#include "cachalot/tensor_pool.h"

namespace cachalot::bench {
namespace {

TensorSpec spec_of(std::size_t bytes) { return {{static_cast<std::int64_t>(bytes)}, DType::int8}; }
constexpr std::size_t kBytes = 4 * kKiB;
constexpr std::size_t kSlots = 4096;
constexpr int kPairs = 2'000'000;
constexpr int kShots = 7;  // the best counts

// --- time ------------------------------------------------------------------------------------------------------------

class PoolSubject {
 public:
  using Held = PooledTensor;
  Held take(Stream stream) { return pool_.acquire(stream); }
  static void give_back(Held& held) { held.release(); }
  std::size_t metadata_bytes() const { return pool_.metadata_bytes() / kSlots; }

 private:
  std::unique_ptr<CachingAllocator> allocator_ = make_allocator();
  TensorPool pool_{*allocator_, spec_of(kBytes), {.initial_slots = kSlots, .stream = OwnAllocator::stream(0)}};
};

class AllocatorSubject {
 public:
  struct Held {
    void* pointer = nullptr;
  };
  explicit AllocatorSubject(std::string_view options) { allocator_->configure(options); }
  Held take(Stream stream) { return {allocator_->allocate(kBytes, 0, stream)}; }
  void give_back(Held& held) { allocator_->deallocate(held.pointer); }
  std::size_t metadata_bytes() const {
    for (std::size_t i = 0; i < kSlots; ++i) allocator_->allocate(kBytes);
    return allocator_->metadata_bytes() / kSlots;
  }

 private:
  std::unique_ptr<CachingAllocator> allocator_ = make_allocator();
};

// Nanoseconds a pair of one of `threads` that each take and give back; all on one stream.
template <typename Subject>
double ns_a_pair(Subject& subject, int threads) {
  double best = 1e9;
  for (int shot = 0; shot < kShots; ++shot) {
    const double ns = ns_of_threads(threads, [&](int, auto&& start_together) {
      start_together();
      for (int i = 0; i < kPairs; ++i) {
        auto held = subject.take(OwnAllocator::stream(0));
        subject.give_back(held);
      }
    });
    best = std::min(best, ns / kPairs);
  }
  return best;
}

// Nanoseconds for each that one thread takes and another gives back.
template <typename Subject>
double ns_a_handover(Subject& subject) {
  constexpr std::size_t kBoxes = 1024;  // more than a Ring has places
  double best = 1e9;
  for (int shot = 0; shot < kShots; ++shot) {
    Ring ring;
    std::vector<typename Subject::Held> boxes(kBoxes);
    const double ns = ns_of_threads(2, [&](int index, auto&& start_together) {
      start_together();
      if (index == 0) {
        for (std::size_t i = 0; i < kPairs; ++i) {
          boxes[i % kBoxes] = subject.take(OwnAllocator::stream(0));
          ring.put(&boxes[i % kBoxes]);
        }
      } else {
        for (int i = 0; i < kPairs; ++i) subject.give_back(*static_cast<typename Subject::Held*>(ring.take()));
      }
    });
    best = std::min(best, ns / kPairs);
  }
  return best;
}

template <typename Subject>
void print_costs(std::string_view name, Subject& subject) {
  const double alone = ns_a_pair(subject, 1);
  const double together = ns_a_pair(subject, 2);
  fmt::print("| {} | {:.1f} | {:.2f}x | {:.1f} | {} |\n", name, alone, 2 * alone / together, ns_a_handover(subject),
             subject.metadata_bytes());
}

void print_costs() {
  fmt::print("| {} B | same thread, ns a pair | two threads: throughput | thread to thread, ns | host bytes each |\n",
             kBytes);
  fmt::print("|---|---:|---:|---:|---:|\n");
  PoolSubject pool;
  print_costs("TensorPool", pool);
  AllocatorSubject cached("thread_cache:True");
  print_costs("CachingAllocator, thread_cache", cached);
  AllocatorSubject exact("thread_cache:False");
  print_costs("CachingAllocator", exact);
}

// --- what a pool saves -----------------------------------------------------------------------------------------------

// Intermediates of a model whose shapes vary: 24 kinds of 64 KiB to 32 MiB, up to 48 alive, in random order.
class Intermediates {
 public:
  static constexpr std::size_t kKinds = 24;
  static constexpr std::size_t kMostAlive = 48;

  explicit Intermediates() : sizes_(log_uniform_sizes(64 * kKiB, 32 * kMiB, kKinds, 3)) {}
  // The next step: a size to take, or (empty) a number of one that is alive, to give back.
  struct Step {
    std::optional<std::size_t> bytes;
    std::size_t which = 0;
  };
  Step next() {
    const bool takes = alive_ == 0 || (alive_ < kMostAlive && random_() % 2 == 0);
    if (takes) return {sizes_[random_() % kKinds], alive_++};
    return {std::nullopt, random_() % alive_--};
  }

 private:
  std::vector<std::size_t> sizes_;
  std::mt19937_64 random_{4};
  std::size_t alive_ = 0;
};

struct Outcome {
  std::size_t steps = 0;
  std::uint64_t takes = 0;
  std::uint64_t allocator_calls = 0;
  std::uint64_t device_calls = 0;
  double reserved_mib = 0;
  double unused = 0;  // 1 - peak of what is in use / peak of what is reserved
};

struct Measured {
  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator{{device}};
  std::size_t in_use = 0;
  std::size_t peak = 0;

  void took(std::size_t bytes) { peak = std::max(peak, in_use += bytes); }
  void gave(std::size_t bytes) { in_use -= bytes; }
  Outcome outcome(std::size_t steps, std::uint64_t takes, std::uint64_t calls) const {
    const auto reserved = static_cast<double>(allocator.max_memory_reserved());
    return {steps,           takes,
            calls,           device->count(DeviceCall::malloc),
            reserved / kMiB, 1 - static_cast<double>(peak) / reserved};
  }
};

// Until the pools' reuse rate is `reuse`.
Outcome with_pools(double reuse, std::size_t growth_step) {
  Measured world;
  PoolSet pools(world.allocator, kMaxRequestBytes, {.growth_step = growth_step});
  Intermediates program;
  std::vector<PooledTensor> alive;
  std::size_t steps = 0;
  while (pools.stats().reuse_rate() < reuse) {
    const auto step = program.next();
    ++steps;
    if (step.bytes) {
      alive.push_back(pools.acquire(spec_of(*step.bytes)));
      world.took(*step.bytes);
    } else {
      world.gave(alive[step.which].bytes());
      std::swap(alive[step.which], alive.back());
      alive.pop_back();
    }
  }
  const PoolStats stats = pools.stats();
  return world.outcome(steps, stats.acquires, stats.allocations);
}

Outcome without(std::size_t steps) {
  Measured world;
  Intermediates program;
  std::vector<LiveBlock> alive;
  std::uint64_t takes = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    const auto step = program.next();
    if (step.bytes) {
      alive.push_back({world.allocator.allocate(*step.bytes), *step.bytes});
      world.took(*step.bytes);
      ++takes;
    } else {
      world.gave(alive[step.which].bytes);
      world.allocator.deallocate(alive[step.which].pointer);
      std::swap(alive[step.which], alive.back());
      alive.pop_back();
    }
  }
  return world.outcome(steps, takes, takes);
}

void print_row(double reuse, std::string_view how, const Outcome& outcome) {
  const double saved = 1 - static_cast<double>(outcome.allocator_calls) / static_cast<double>(outcome.takes);
  fmt::print("| {:.0f} % | {} | {} | {} | {:.1f} % | {} | {:.0f} | {:.1f} % |\n", 100 * reuse, how, outcome.takes,
             outcome.allocator_calls, 100 * saved, outcome.device_calls, outcome.reserved_mib, 100 * outcome.unused);
}

void print_savings() {
  fmt::print(
      "| reuse rate | how | tensors | allocator calls | saved | cudaMalloc | peak reserved, MiB | of it not in use "
      "|\n");
  fmt::print("|---:|---|---:|---:|---:|---:|---:|---:|\n");
  for (const double reuse : {0.5, 0.8, 0.9, 0.95, 0.99}) {
    const Outcome one = with_pools(reuse, 1);
    print_row(reuse, "allocator alone", without(one.steps));
    print_row(reuse, "pools", one);
    print_row(reuse, "pools, growth_step 2", with_pools(reuse, 2));
  }
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  if (argc > 1) {
    fmt::print(stderr, "pool: unknown argument '{}': it takes none\n", argv[1]);
    return 2;
  }
  cachalot::bench::start_a_thread();
  cachalot::bench::print_costs();
  fmt::print("\n");
  cachalot::bench::print_savings();
}
