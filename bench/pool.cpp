// Tensor pools: what a tensor costs beside an allocation, and what a pool saves. Three tables, printed by one command; on
// a simulated device, so that the driver costs next to nothing.
#include "cachalot/pool_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/pool_costs.h"
#include "bench/workloads.h"
#include "cachalot/tensor_pool.h"

namespace cachalot::bench {
namespace {

TensorSpec spec_of(std::size_t bytes) { return {{static_cast<std::int64_t>(bytes)}, DType::int8}; }

// --- time ------------------------------------------------------------------------------------------------------------

class PoolSubject {
 public:
  using Held = PooledTensor;
  Held take() { return pool_.acquire(stream_); }
  static void give_back(Held& held) { held.release(); }
  std::size_t host_bytes_each() const { return pool_.metadata_bytes() / kPoolSlots; }

 private:
  Stream stream_ = OwnAllocator::stream(0);
  std::unique_ptr<CachingAllocator> allocator_ = make_allocator();
  TensorPool pool_{*allocator_, spec_of(kPooledBytes), {.initial_slots = kPoolSlots, .stream = stream_}};
};

class AllocatorSubject {
 public:
  struct Held {
    void* pointer = nullptr;
  };
  explicit AllocatorSubject(std::string_view options) { allocator_->configure(options); }
  Held take() { return {allocator_->allocate(kPooledBytes, 0, stream_)}; }
  void give_back(Held& held) { allocator_->deallocate(held.pointer); }
  std::size_t host_bytes_each() const {
    for (std::size_t i = 0; i < kPoolSlots; ++i) allocator_->allocate(kPooledBytes);
    return allocator_->metadata_bytes() / kPoolSlots;
  }

 private:
  Stream stream_ = OwnAllocator::stream(0);
  std::unique_ptr<CachingAllocator> allocator_ = make_allocator();
};

// No pool: what it costs to pass an object of a pooled tensor's size on.
class ObjectSubject {
 public:
  class Held {
   public:
    Held() = default;
    explicit Held(ObjectSubject* owner) : words_{owner, owner, owner, owner} {}
    Held(Held&& other) noexcept : words_(other.words_) { other.words_[0] = nullptr; }
    Held& operator=(Held&& other) noexcept {
      words_ = other.words_;
      other.words_[0] = nullptr;
      return *this;
    }
    ~Held() = default;
    void clear() { words_[0] = nullptr; }

   private:
    std::array<ObjectSubject*, sizeof(PooledTensor) / sizeof(void*)> words_{};
  };
  Held take() { return Held(this); }
  static void give_back(Held& held) { held.clear(); }
};

// RMM is measured by a program of its own, over the simulated CUDA runtime: it wants one.
void print_costs_of_rmm() {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto program = here / "peers" / "rmm_fixed_size";
  const auto simulator = here.parent_path() / "simulator" / "libcachalot_simulator.so";
  if (!std::filesystem::exists(program)) {
    fmt::print(stderr, "pool: without RMM, which is not built (bench/peers/README.md)\n");
    return;
  }
  std::fflush(stdout);
  const std::string command = fmt::format("LD_PRELOAD='{}' '{}'", simulator.string(), program.string());
  if (std::system(command.c_str()) != 0) fmt::print(stderr, "pool: without RMM: '{}' failed\n", command);
}

void print_table_of_costs() {
  fmt::print(
      "| {} B | same thread, ns a pair | two threads: throughput | thread to thread, ns | host bytes each | "
      "handle, bytes |\n",
      kPooledBytes);
  fmt::print("|---|---:|---:|---:|---:|---:|\n");
  PoolSubject pool;
  print_costs("TensorPool", pool);
  AllocatorSubject cached("thread_cache:True");
  print_costs("CachingAllocator, thread_cache", cached);
  AllocatorSubject exact("thread_cache:False");
  print_costs("CachingAllocator", exact);
  print_costs_of_rmm();
}

void print_table_of_handovers() {
  fmt::print("| thread to thread, ns | threads anywhere | on one processor | on two processors |\n");
  fmt::print("|---|---:|---:|---:|\n");
  PoolSubject pool;
  print_handovers("TensorPool", pool);
  ObjectSubject objects;
  print_handovers("objects of the same size, no pool", objects);
}

// --- the savings of a pool -------------------------------------------------------------------------------------------

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
  double unused = 0;  // 1 - peak of used memory / peak of reserved memory
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
  cachalot::bench::print_table_of_costs();
  fmt::print("\n");
  cachalot::bench::print_table_of_handovers();
  fmt::print("\n");
  cachalot::bench::print_savings();
}
