#include "tests/programs/random_program.h"

#include <array>
#include <cmath>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/simulated_device.h"

namespace cachalot {
namespace {

using Kind = Operation::Kind;

// The common writer of every program. The same seed gives the same program.
class Writer {
 public:
  virtual ~Writer() = default;

  Program write(std::size_t count) {
    while (program_.operations.size() < count) add_one();
    return std::move(program_);
  }

 protected:
  Writer(std::uint64_t seed, const std::array<std::size_t, 2>& device_mib, const std::string& options)
      : random_(seed), program_{device_mib, options, {}} {}

  std::uint64_t below(std::uint64_t bound) {
    return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  std::uint64_t log_uniform(double smallest, double largest) {
    const double log = std::uniform_real_distribution<double>(std::log2(smallest), std::log2(largest))(random_);
    return static_cast<std::uint64_t>(std::exp2(log));
  }

  void add(Kind kind, int device, std::uint64_t name = 0, std::uint64_t stream = 0, std::uint64_t amount = 0) {
    program_.operations.push_back({kind, device, name, stream, amount});
  }
  void add_allocate(Kind kind, int device, std::uint64_t stream, std::uint64_t bytes) {
    live_.push_back(next_name_);
    add(kind, device, next_name_++, stream, bytes);
  }
  void add_deallocate(std::uint64_t stream) {
    const std::uint64_t name = take_live();
    add(chance(0.05) ? Kind::deallocate_sized : Kind::deallocate, 0, name, stream);
  }

  std::size_t live() const { return live_.size(); }
  std::uint64_t some_live() { return live_[below(live_.size())]; }
  // One that is live for the last time.
  std::uint64_t take_live() {
    const std::size_t which = below(live_.size());
    const std::uint64_t name = live_[which];
    live_[which] = live_.back();
    live_.pop_back();
    return name;
  }

 private:
  virtual void add_one() = 0;

  std::mt19937_64 random_;
  Program program_;
  std::vector<std::uint64_t> live_;
  std::uint64_t next_name_ = 1;
};

// For the reference heap.
class ReferenceWriter final : public Writer {
 public:
  ReferenceWriter(std::uint64_t seed, const Taste& taste)
      : Writer(seed, taste.device_mib, taste.options), taste_(taste) {}

 private:
  // Log-uniform; one in four lies at or beside a size where a rule changes.
  std::uint64_t some_bytes() {
    constexpr std::size_t kBoundaries[] = {512, 1024, kMiB, 2 * kMiB, 10 * kMiB, 20 * kMiB, 24 * kMiB, 32 * kMiB};
    if (taste_.smallest_bytes == 1 && chance(0.25)) {
      const std::size_t boundary = kBoundaries[below(std::size(kBoundaries))];
      if (boundary < taste_.largest_bytes) return boundary - 1 + below(3);
    }
    return log_uniform(taste_.smallest_bytes, static_cast<double>(taste_.largest_bytes));
  }

  void add_one() override {
    const int device = chance(0.8) ? 0 : 1;
    const std::uint64_t stream = below(kProgramStreams);
    const double fullness = static_cast<double>(live()) / static_cast<double>(taste_.most_live);
    const std::uint64_t dice = below(1000);
    if (dice < 800) {
      if (live() == 0 || !chance(fullness / (fullness + 0.7))) {
        return add_allocate(Kind::allocate, device, stream, some_bytes());
      }
      return add_deallocate(stream);
    }
    if (dice < 870) return live() == 0 ? void() : add(Kind::record_stream, device, some_live(), stream);
    if (dice < 920) return add(Kind::launch, device, 0, stream, 1 + below(1'000'000));
    if (dice < 970) return add(Kind::advance, device, 0, 0, 1 + below(700'000));
    if (dice < 974) return add(Kind::empty_cache, device);
    if (dice < 975) return add(Kind::empty_all_caches, 0);
    if (dice < 979) return add(Kind::set_memory_fraction, device, 0, 0, chance(0.3) ? 1000 : 300 + below(700));
    if (dice < 981) return add(Kind::reset_peak, device);
    if (dice < 982) return add(Kind::reset_accumulated, device);
    if (dice < 985)
      return taste_.changes_options ? add(Kind::configure, 0, 0, 0, below(kProgramOptions.size())) : void();
    if (taste_.captures && dice < 988) return add(Kind::begin_capture, device, 1 + below(2), stream);
    if (taste_.captures && dice < 992) return add(Kind::end_capture, device);
    if (taste_.donates && dice < 995) return live() == 0 ? void() : add(Kind::donate, 0, take_live());
    if (taste_.uses_pools) add_pool_operation(device);
  }

  void add_pool_operation(int device) {
    const std::uint64_t pool = 1 + below(3);
    constexpr Kind kKinds[] = {Kind::create_pool, Kind::create_pool, Kind::begin_pool,   Kind::begin_pool,
                               Kind::end_pool,    Kind::end_pool,    Kind::release_pool, Kind::set_use_on_oom,
                               Kind::empty_pool,  Kind::end_pool};
    if (chance(0.03)) return add(Kind::set_no_split, device, pool);
    add(kKinds[below(std::size(kKinds))], device, pool, 0, below(2));
  }

  const Taste taste_;
};

// For a Player.
class PlayWriter final : public Writer {
 public:
  PlayWriter(std::uint64_t seed, const PlayTaste& taste)
      : Writer(seed, taste.device_mib, taste.options), taste_(taste) {}

 private:
  void add_one() override {
    if (chance(taste_.faults)) return add_fault();
    const int device = chance(0.85) ? 0 : 1;
    const std::uint64_t stream = below(kProgramStreams);
    const std::uint64_t dice = below(1000);
    if (dice < 300 || live() == 0) return add_some_allocate(device, stream);
    if (dice < 600 || live() > taste_.most_live) return add_deallocate(stream);
    if (dice < 770) return add(Kind::use, device, some_live(), stream, 1 + below(100'000));
    if (dice < 850) return add(Kind::record_stream, device, some_live(), stream);
    if (dice < 900) return add(Kind::advance, device, 0, 0, 1 + below(50'000));
    if (dice < 915) return add(Kind::launch, device, 0, stream, 1 + below(500'000));
    if (dice < 930) return add(Kind::wait, device, 0, stream, below(kProgramStreams));
    if (dice < 940) return add(Kind::synchronize, device, 0, stream);
    if (dice < 945) return add(Kind::empty_cache, device);
    if (dice < 947) return add(Kind::empty_all_caches, 0);
    if (dice < 950) return add(Kind::set_memory_fraction, device, 0, 0, chance(0.5) ? 1000 : 400 + below(600));
    if (dice < 953) return add(Kind::configure, 0, 0, 0, below(kProgramOptions.size()));
    if (dice < 954) return add(Kind::switch_segments, 0, 0, 0, below(2));
    if (dice < 955) return add(chance(0.5) ? Kind::reset_peak : Kind::reset_accumulated, device);
    if (dice < 957) return add(Kind::donate, 0, some_live());
    if (dice < 959) return add(Kind::misuse, 0, some_live(), 0, below(static_cast<std::uint64_t>(Misuse::kCount)));
    if (dice < 965) return add(chance(0.5) ? Kind::sleep : Kind::wake, 0, 0, 0, below(2));
    if (dice < 980) return taste_.captures ? add_capture_operation(device, stream) : void();
    add_pool_operation(device);
  }

  void add_some_allocate(int device, std::uint64_t stream) {
    const std::uint64_t bytes = log_uniform(1, taste_.largest_bytes);
    if (chance(0.15)) return add_allocate(Kind::allocate_tagged, device, stream, bytes);
    if (chance(taste_.placed)) {
      constexpr Kind kKinds[] = {Kind::allocate_contiguous, Kind::allocate_aligned, Kind::allocate_placed,
                                 Kind::allocate_plain};
      return add_allocate(kKinds[below(std::size(kKinds))], device, stream, bytes);
    }
    add_allocate(Kind::allocate, device, stream, bytes);
  }

  void add_capture_operation(int device, std::uint64_t stream) {
    const std::uint64_t graph = 1 + below(2);
    constexpr Kind kKinds[] = {Kind::begin_capture, Kind::end_capture, Kind::end_capture, Kind::checkpoint,
                               Kind::restore};
    add(kKinds[below(std::size(kKinds))], device, graph, stream);
  }

  void add_pool_operation(int device) {
    const std::uint64_t pool = 1 + below(3);
    constexpr Kind kKinds[] = {Kind::create_pool, Kind::begin_pool,   Kind::begin_pool,     Kind::end_pool,
                               Kind::end_pool,    Kind::release_pool, Kind::set_use_on_oom, Kind::empty_pool};
    if (chance(0.03)) return add(Kind::set_no_split, device, pool);
    add(kKinds[below(std::size(kKinds))], device, pool, 0, below(2));
  }

  // Adds a fault of any kind, or of one; soon, or one of the next hundred.
  void add_fault() {
    const std::uint64_t call = chance(0.5) ? 0 : 1 + below(kDeviceCallCount);
    add(Kind::fail, chance(0.85) ? 0 : 1, call, below(2), 1 + below(chance(0.7) ? 4 : 100));
  }

  const PlayTaste taste_;
};

}  // namespace

Program random_program(std::uint64_t seed, std::size_t operations, const Taste& taste) {
  return ReferenceWriter(seed, taste).write(operations);
}

Program random_play(std::uint64_t seed, std::size_t operations, const PlayTaste& taste) {
  return PlayWriter(seed, taste).write(operations);
}

}  // namespace cachalot
