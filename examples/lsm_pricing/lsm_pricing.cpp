// American puts and a convertible bond by least-squares Monte Carlo, with every buffer from a pool. README.md has what it
// prints and what follows from it.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cachalot/simulated_device.h"
#include "examples/common/program.h"
#include "examples/lsm_pricing/host_backend.h"
#include "examples/lsm_pricing/memory.h"
#include "examples/lsm_pricing/pricer.h"
#include "examples/lsm_pricing/tree.h"
#if CACHALOT_EXAMPLE_HAS_CUDA
#include "examples/lsm_pricing/cuda_backend.h"
#endif

namespace {

using examples::Relations;
using namespace lsm;

constexpr int kTreeSteps = 40;        // from date to date
constexpr double kRounding = 0.0012;  // of the published values, and the tree's own error

struct Options {
  std::size_t paths = 100'000;
  std::uint64_t seed = 1;
};

// Longstaff and Schwartz (2001), table 1: strike 40, rate 0.06, volatility 0.2, a year, 50 dates.
struct PublishedPut {
  double spot;
  double finite_differences;
  double simulated;  // on 100,000 paths
  double standard_error;
};
constexpr PublishedPut kPublished[] = {{36, 4.478, 4.472, 0.010},
                                       {38, 3.250, 3.244, 0.009},
                                       {40, 2.314, 2.313, 0.009},
                                       {42, 1.617, 1.617, 0.007},
                                       {44, 1.110, 1.118, 0.007}};

constexpr Contract kPut{.kind = Kind::american_put, .years = 1, .dates = 50, .strike = 40};
// Two years, decided on every other week; converts into 0.9 shares, may be called for 110, and pays 1 each half year.
constexpr Contract kBond{.kind = Kind::convertible_bond,
                         .years = 2,
                         .dates = 52,
                         .face = 100,
                         .shares = 0.9,
                         .call_price = 110,
                         .coupon = 1,
                         .coupon_every = 13};
constexpr Market kBondMarket{.spot = 100, .volatility = 0.25, .rate = 0.05, .dividend_yield = 0.03};

Market market_of(const PublishedPut& put) { return {.spot = put.spot, .volatility = 0.2, .rate = 0.06}; }

// A device, its allocator, and the backend that works on it.
struct World {
  std::shared_ptr<cachalot::Device> device;
  cachalot::CachingAllocator allocator;
  std::unique_ptr<Backend> backend;

  World(const std::shared_ptr<cachalot::Device>& on, bool is_gpu) : device(on), allocator({on}) {
#if CACHALOT_EXAMPLE_HAS_CUDA
    if (is_gpu) backend = cuda_backend(allocator);
#else
    if (is_gpu) throw std::invalid_argument("--on is gpu, but the program was built without nvcc or cuRAND");
#endif
    if (!is_gpu) backend = host_backend(device);
  }
};

struct Place {
  std::shared_ptr<cachalot::Device> device;
  bool is_gpu;
};

// `where` is auto, gpu or host.
Place find_place(const std::string& where) {
  const auto gpus = where == "host" ? std::vector<std::shared_ptr<cachalot::Device>>() : cachalot::cuda_devices();
  if (where == "gpu" && gpus.empty()) throw std::invalid_argument("--on is gpu, but there is none");
  const bool is_gpu = !gpus.empty() && (CACHALOT_EXAMPLE_HAS_CUDA || where == "gpu");
  if (is_gpu) return {gpus[0], true};
  return {std::make_shared<cachalot::SimulatedDevice>(), false};
}

std::string multiple_of_4(const std::string& text) {
  if (std::stoull(text) % 4 == 0) return "";
  return fmt::format("is {}; it must be a multiple of 4: pairs of paths, whose numbers are drawn in pairs", text);
}

// Returns the allocator's bytes for a request of `bytes`: a multiple of 512.
constexpr std::size_t block_bytes(std::size_t bytes) { return (bytes + 511) / 512 * 512; }

// On the simulated runtime no kernel does.
bool computes(Backend& backend, cachalot::CachingAllocator& allocator) {
  Buffers buffers(allocator, Buffers::Keep::none);
  const Buffer values(buffers, 2, backend.stream());
  backend.mature(values, values, {.contract = kPut, .coefficients = {}, .discount = 1, .coupon = 1});
  return backend.sum_pairs(values).value != 0;
}

// Prices one contract after the other, in the same world.
class Program {
 public:
  Program(const Options& options, const Place& place)
      : simulation_{.pairs = options.paths / 2, .seed = options.seed},
        place_(place),
        most_errors_(options.seed == Options{}.seed ? 2 : 4) {}

  int run() {
    World world(place_.device, place_.is_gpu);
    computes_nothing_ = !computes(*world.backend, world.allocator);
    fmt::print("{} paths by {}, in the memory of {}{}\n\n", 2 * simulation_.pairs, world.backend->name(),
               world.device->properties().name, computes_nothing_ ? " (where kernels compute nothing)" : "");
    Buffers pools(world.allocator, Buffers::Keep::none);
    price_puts(world, pools);
    price_bond(world, pools);
    compare_tensors();
    compare_buffers();
    return relations_.finish();
  }

 private:
  void price_puts(World& world, Buffers& buffers) {
    fmt::print("{:<22}{:>9}{:>9}{:>9}{:>22}{:>20}\n", "American put, strike 40", "price", "s.e.", "tree",
               "finite differences", "simulated (s.e.)");
    for (const PublishedPut& put : kPublished) {
      const Price priced = price(kPut, market_of(put), simulation_, *world.backend, buffers);
      const double tree = tree_price(kPut, market_of(put), kTreeSteps);
      fmt::print("{:<22}{:>10.3f}{:>9.3f}{:>9.3f}{:>22.3f}{:>20}\n", fmt::format("stock at {}", put.spot), priced.value,
                 priced.standard_error, tree, put.finite_differences,
                 fmt::format("{:.3f} ({:.3f})", put.simulated, put.standard_error));
      check(fmt::format("the put on a stock of {}", put.spot), priced, tree);
      relations_.holds(std::abs(tree - put.finite_differences) < kRounding, "the tree agrees with what was published");
    }
  }

  void price_bond(World& world, Buffers& buffers) {
    const Price priced = price(kBond, kBondMarket, simulation_, *world.backend, buffers);
    const double tree = tree_price(kBond, kBondMarket, kTreeSteps);
    fmt::print("\n{:<22}{:>10.3f}{:>9.3f}{:>9.3f}\n", "convertible bond", priced.value, priced.standard_error, tree);
    check("the convertible bond", priced, tree);
  }

  void check(const std::string& what, const Price& priced, double reference) {
    if (computes_nothing_) return;
    const double error = std::abs(priced.value - reference);
    relations_.holds(error < most_errors_ * priced.standard_error,
                     fmt::format("{}: {:.4f} is within {} standard errors of {:.4f}, each {:.4f}", what, priced.value,
                                 most_errors_, reference, priced.standard_error));
  }

  void compare_tensors() {
    const MemoryUse kept = kept_tensors(place_.device);
    const MemoryUse reused = reused_tensors(place_.device);
    print_memory_head("100 tensors of 1000 x 1000 floats");
    print_memory("kept", kept);
    print_memory("from a pool, one at a time", reused);
    constexpr std::size_t kTensor = block_bytes(1000 * 1000 * sizeof(float));
    constexpr std::size_t kSegment = 20 << 20;  // the allocator's request to the device
    constexpr std::size_t kInSegment = kSegment / kTensor;
    relations_.holds(kept.pool.allocations == kTensors && kept.pool.hits == 0 &&
                         kept.pool.peak_bytes == kTensors * kTensor &&
                         kept.peak_reserved_bytes == kTensors / kInSegment * kSegment,
                     "tensors that are kept are an allocation each, and 400 MB");
    relations_.holds(reused.pool.allocations == 1 && reused.pool.hits == kTensors - 1 &&
                         reused.pool.peak_bytes == kTensor && reused.peak_reserved_bytes == kSegment,
                     "tensors that are reused are one allocation, and 4 MB");
  }

  MemoryUse use_of_a_put(Buffers::Keep keep, Price& priced) {
    World world(place_.device, place_.is_gpu);
    Buffers buffers(world.allocator, keep);
    priced = price(kPut, market_of(kPublished[0]), simulation_, *world.backend, buffers);
    return use_of(world.allocator, buffers.stats());
  }

  void compare_buffers() {
    Price with_all;
    Price with_pool;
    const MemoryUse kept = use_of_a_put(Buffers::Keep::all, with_all);
    const MemoryUse reused = use_of_a_put(Buffers::Keep::none, with_pool);
    print_memory_head("the put's own buffers");
    print_memory("kept, each step's its own", kept);
    print_memory("from pools", reused);
    const auto steps = static_cast<std::uint64_t>(kPut.dates);
    relations_.holds(kept.pool.acquires == 2 * steps + 2 && kept.pool.allocations == kept.pool.acquires,
                     "two buffers a step and two for all, each an allocation");
    relations_.holds(reused.pool.acquires == kept.pool.acquires && reused.pool.allocations == 4,
                     "four allocations: normals, stock, motion and values");
    const std::size_t pair_bytes = simulation_.pairs * sizeof(double);
    const std::size_t both = block_bytes(pair_bytes) + block_bytes(2 * pair_bytes);  // a number a pair, and two
    relations_.holds(kept.pool.peak_bytes == (steps + 1) * both, "kept buffers add up");
    relations_.holds(reused.pool.peak_bytes == 2 * both, "those from pools are the four");
    relations_.holds(with_all.value == with_pool.value, "the price is the same to the bit");
  }

  const Simulation simulation_;
  const Place place_;
  const int most_errors_;
  bool computes_nothing_ = false;
  Relations relations_;
};

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App app("American puts and a convertible bond by least-squares Monte Carlo", "lsm_pricing");
  app.add_option("--paths", options.paths, "paths, half of them antithetic")
      ->check(CLI::Range(4, 100'000'000))
      ->check(multiple_of_4)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the random numbers")->capture_default_str();
  std::string where = "auto";
  app.add_option("--on", where, "auto: a GPU if there is one")
      ->check(CLI::IsMember({"auto", "gpu", "host"}))
      ->capture_default_str();
  return examples::run(app, count, arguments, [&] { return Program(options, find_place(where)).run(); });
}
