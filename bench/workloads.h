// The work that is measured, shared by the benchmarks, the table of targets and the instruction count.
// Each is set up by its constructor and then does one unit of work per call. The allocator is a type parameter, which may
// be a reference: HotPair<Peer&>(bytes, peer). Without one it is cachalot on a simulated device. Blocks alive at the end
// stay alive.
//
// Sizes and choices are random but the same every time, and drawn beforehand, so that only the allocator is measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"

namespace cachalot::bench {

// glibc leaves out the atomic instructions of its locks until a process has started a thread; real programs have.
inline void start_a_thread() {
  std::thread([] {}).join();
}

// The allocators that work runs on. A block is freed with its bytes and stream, as it was allocated: some allocators
// need them.
template <typename T>
concept Allocates = requires(T& allocator, void* pointer, std::size_t bytes, Stream stream, int index) {
  { allocator.allocate(bytes, stream) } -> std::same_as<void*>;
  allocator.deallocate(pointer, bytes, stream);
  { allocator.stream(index) } -> std::same_as<Stream>;  // another one for each index from 0 on
};

// An allocator on a simulated device so large that it never is full.
inline std::unique_ptr<CachingAllocator> make_allocator() {
  SimulatedDevice::Config config;
  config.memory_bytes = std::size_t{1} << 40;
  std::vector<std::shared_ptr<Device>> devices = {std::make_shared<SimulatedDevice>(config)};
  Options options;
  options.immortal_streams = true;  // as PyTorch's, with which this is compared
  return std::make_unique<CachingAllocator>(std::move(devices), options);
}

// The allocator of all work unless another one is given.
class OwnAllocator {
 public:
  void* allocate(std::size_t bytes, Stream stream) { return allocator_->allocate(bytes, 0, stream); }
  void deallocate(void* pointer, std::size_t, Stream) { allocator_->deallocate(pointer); }
  static Stream stream(int index) { return reinterpret_cast<Stream>(static_cast<Address>(index + 1) << 12); }
  const CachingAllocator& operator*() const { return *allocator_; }

 private:
  std::unique_ptr<CachingAllocator> allocator_ = make_allocator();
};
static_assert(Allocates<OwnAllocator>);

// An allocation, with what its free is told.
struct LiveBlock {
  void* pointer = nullptr;
  std::size_t bytes = 0;
};

// `count` sizes in [low, high), their logarithms uniform.
inline std::vector<std::size_t> log_uniform_sizes(std::size_t low, std::size_t high, std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(std::log2(static_cast<double>(low)),
                                                  std::log2(static_cast<double>(high)));
  std::vector<std::size_t> sizes(count);
  std::ranges::generate(
      sizes, [&] { return std::clamp(static_cast<std::size_t>(std::exp2(exponent(random))), low, high - 1); });
  return sizes;
}

// Allocates and frees one size that is in the cache.
template <typename Allocator = OwnAllocator>
class HotPair {
 public:
  explicit HotPair(std::size_t bytes, Allocator allocator = {})
      : allocator_(std::forward<Allocator>(allocator)), bytes_(bytes) {
    pair();
  }
  void pair() { allocator_.deallocate(allocator_.allocate(bytes_, nullptr), bytes_, nullptr); }

 private:
  Allocator allocator_;
  std::size_t bytes_;
};

// Frees one of the live blocks, chosen at random, and allocates another of a random size.
template <typename Allocator = OwnAllocator>
class Churn {
 public:
  Churn(std::size_t live, std::size_t low, std::size_t high, Allocator allocator = {})
      : allocator_(std::forward<Allocator>(allocator)),
        sizes_(log_uniform_sizes(low, high, kDrawn, 1)),
        victims_(kDrawn),
        live_(live) {
    std::mt19937 random(2);
    std::uniform_int_distribution<std::uint32_t> index(0, static_cast<std::uint32_t>(live - 1));
    std::ranges::generate(victims_, [&] { return index(random); });
    for (std::size_t i = 0; i < live; ++i) live_[i] = {allocator_.allocate(sizes_[i], nullptr), sizes_[i]};
    for (std::size_t i = 0; i < 20 * live; ++i) pair();  // until free blocks are spread as they stay
  }
  void pair() {
    LiveBlock& block = live_[victims_[next_]];
    allocator_.deallocate(block.pointer, block.bytes, nullptr);
    block = {allocator_.allocate(sizes_[next_], nullptr), sizes_[next_]};
    next_ = (next_ + 1) % kDrawn;
  }
  const auto& allocator() const { return allocator_; }

 private:
  static constexpr std::size_t kDrawn = std::size_t{1} << 16;

  Allocator allocator_;
  std::vector<std::size_t> sizes_;
  std::vector<std::uint32_t> victims_;
  std::vector<LiveBlock> live_;
  std::size_t next_ = 0;
};

// Blocks of 1 KiB, every second one of which stays permanently, so that those freed between them never merge: `holes`
// of them are free, and `spare` more are allocated, to be freed and allocated again.
template <typename Allocator = OwnAllocator>
class Holes {
 public:
  static constexpr std::size_t kBytes = kKiB;

  explicit Holes(std::size_t holes, std::size_t spare = 0, Allocator allocator = {})
      : allocator_(std::forward<Allocator>(allocator)), order_(spare) {
    std::vector<void*> between;
    for (std::size_t i = 0; i < holes + spare; ++i) {
      allocate();
      between.push_back(allocate());
    }
    allocate();
    std::shuffle(between.begin(), between.end(), std::mt19937(3));
    live_.assign(between.begin(), between.begin() + static_cast<std::ptrdiff_t>(spare));
    for (std::size_t i = spare; i < between.size(); ++i) deallocate(between[i]);
    std::iota(order_.begin(), order_.end(), 0u);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(4));
  }

  // Allocates and frees one block: it goes into a hole, if there is one.
  void pair() { deallocate(allocate()); }

  // Frees all spare blocks, in an order that has nothing to do with their addresses, so that they become holes in
  // random places among the others; then allocates as many. That is `spare` pairs.
  void churn() {
    for (const std::uint32_t i : order_) deallocate(live_[i]);
    for (void*& block : live_) block = allocate();
  }
  std::size_t pairs_a_churn() const { return live_.size(); }

 private:
  void* allocate() { return allocator_.allocate(kBytes, nullptr); }
  void deallocate(void* pointer) { allocator_.deallocate(pointer, kBytes, nullptr); }

  Allocator allocator_;
  std::vector<std::uint32_t> order_;
  std::vector<void*> live_;
};

// The sequence of RMM's RANDOM_ALLOCATIONS_BENCH (cpp/benchmarks/random_allocations), drawn as it draws it: `count`
// allocations of 1 byte to `max_mib` MiB and as many frees, of random live blocks; at most 16,000 MiB live at once.
// Its time includes the random numbers, there as here. The allocator is kept from one sequence to the next.
template <typename Allocator = OwnAllocator>
class RmmRandom {
 public:
  RmmRandom(std::size_t count, std::size_t max_mib, Allocator allocator = {})
      : allocator_(std::forward<Allocator>(allocator)), count_(count), max_bytes_(max_mib * kMiB) {
    live_.reserve(count);
  }

  void sequence() {
    constexpr int kAllocationPercent = 73;
    constexpr std::size_t kMostLiveBytes = 16000 * kMiB;
    std::default_random_engine random;
    std::uniform_int_distribution<std::size_t> size_distribution(1, max_bytes_);
    std::uniform_int_distribution<int> chance(0, 99);
    std::uniform_int_distribution<int> index(0, static_cast<int>(count_) - 1);
    std::size_t allocations = 0;
    std::size_t live_bytes = 0;
    for (std::size_t i = 0; i < 2 * count_; ++i) {
      const std::size_t bytes = size_distribution(random);
      const bool allocate = live_.empty() || (chance(random) < kAllocationPercent && allocations < count_ &&
                                              live_bytes + bytes < kMostLiveBytes);
      if (allocate) {
        live_.push_back({allocator_.allocate(bytes, nullptr), bytes});
        live_bytes += bytes;
        ++allocations;
      } else {
        std::swap(live_[static_cast<std::size_t>(index(random)) % live_.size()], live_.back());
        allocator_.deallocate(live_.back().pointer, live_.back().bytes, nullptr);
        live_bytes -= live_.back().bytes;
        live_.pop_back();
      }
    }
  }
  const auto& allocator() const { return allocator_; }
  std::size_t live_blocks() const { return live_.size(); }

 private:
  Allocator allocator_;
  std::size_t count_;
  std::size_t max_bytes_;
  std::vector<LiveBlock> live_;
};

}  // namespace cachalot::bench
