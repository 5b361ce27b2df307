// Measures allocations that no free block serves: the host time of the page heap's slow path, outside the driver.
//
//   slow_paths [<work> ...]    prints a table, or only the rows of these: growth, churn, pools
//
// Each work is measured with 10,000 and with 100,000 live blocks of 512 B to 8 MiB (the logarithms of the sizes are
// uniform), on a simulated device whose calls take no time on its clock:
//   growth   4 threads, each on a stream of its own, allocate until all blocks are live
//   churn    one thread does so on 8 streams; then it frees blocks at random and allocates others, twice as many
//   pools    as churn, but the blocks lie in 64 private pools
//
// An allocation counts as slow if it calls the device. Its time is that of the whole call less that of the calls to the
// device. CPU time is that of the thread alone; wall time also has what the thread waits for: the locks that other
// threads hold, and the processor. Behind each work stands its peak reserved / peak requested memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/timing.h"
#include "bench/workloads_many.h"
#include "tests/allocator/forwarding_device.h"

namespace cachalot::bench {
namespace {

constexpr std::size_t kLeast = 512;
constexpr std::size_t kMost = 8 * kMiB;
constexpr int kStreams = 8;
constexpr int kThreads = 4;
constexpr std::size_t kPools = 64;
constexpr std::int64_t kWorkNs = 10'000;  // of the stream of each allocation

// Nanoseconds.
struct Times {
  std::int64_t wall = 0;
  std::int64_t cpu = 0;

  static Times now() { return {of(CLOCK_MONOTONIC), of(CLOCK_THREAD_CPUTIME_ID)}; }
  friend Times operator-(Times a, Times b) { return {a.wall - b.wall, a.cpu - b.cpu}; }
  friend Times operator+(Times a, Times b) { return {a.wall + b.wall, a.cpu + b.cpu}; }

 private:
  static std::int64_t of(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
};

// The thread's time in calls to the device, and their number.
struct InDevice {
  Times times;
  std::int64_t calls = 0;
};
thread_local InDevice in_device;

class CountedDevice;

class Counting {
 public:
  explicit Counting(const CountedDevice&) {}
  ~Counting() {
    in_device.times = in_device.times + (Times::now() - start_);
    ++in_device.calls;
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  Times start_ = Times::now();
};

class CountedDevice final : public ForwardingDevice<CountedDevice, Counting> {
 public:
  using ForwardingDevice::ForwardingDevice;
};

// Returns the time of the clocks themselves, to be subtracted: the least of many.
Times times_of_clocks() {
  constexpr int kRuns = 1000;
  Times least = {1'000'000, 1'000'000};
  for (int i = 0; i < kRuns; ++i) {
    const Times start = Times::now();
    const Times took = Times::now() - start;
    least = {std::min(least.wall, took.wall), std::min(least.cpu, took.cpu)};
  }
  return least;
}

// An allocator that times its slow allocations.
class TimedAllocator {
 public:
  TimedAllocator() {
    SimulatedDevice::Config config;
    config.latency = LatencyModel::none();
    device_ = std::make_shared<SimulatedDevice>(config);
    Options options = parse_options("heap:pages");
    options.immortal_streams = true;  // as PyTorch's: memory goes from stream to stream
    std::vector<std::shared_ptr<Device>> devices = {std::make_shared<CountedDevice>(device_)};
    allocator_ = std::make_unique<CachingAllocator>(std::move(devices), options);
  }

  void* allocate(std::size_t bytes, int stream, std::vector<Times>& slow) {
    const InDevice before = in_device;
    const Times start = Times::now();
    void* const pointer = allocator_->allocate(bytes, 0, OwnAllocator::stream(stream));
    const Times all = Times::now() - start;
    if (const std::int64_t calls = in_device.calls - before.calls; calls != 0) {
      const Times outside = all - (in_device.times - before.times);
      slow.push_back({outside.wall - (calls + 1) * clocks_.wall, outside.cpu - (calls + 1) * clocks_.cpu});
    }
    return pointer;
  }
  // The stream works on what it was given, so the device is a little behind the host.
  void work(int stream) {
    device_->launch(OwnAllocator::stream(stream), kWorkNs);
    device_->advance(kWorkNs / kStreams);
  }
  CachingAllocator& operator*() { return *allocator_; }
  double reserved_per_requested() const {
    const DeviceStats stats = allocator_->memory_stats();
    return static_cast<double>(stats.reserved_bytes.all.peak) / static_cast<double>(stats.requested_bytes.all.peak);
  }

 private:
  const Times clocks_ = times_of_clocks();
  std::shared_ptr<SimulatedDevice> device_;
  std::unique_ptr<CachingAllocator> allocator_;
};

struct Measured {
  std::vector<Times> slow;
  double reserved_per_requested = 0;
};

Measured grow(std::size_t blocks) {
  TimedAllocator allocator;
  std::vector<std::vector<Times>> slow(kThreads);
  ns_of_threads(kThreads, [&](int index, auto&& start_together) {
    const auto sizes = log_uniform_sizes(kLeast, kMost, blocks / kThreads, static_cast<unsigned>(index) + 1);
    start_together();
    for (const std::size_t bytes : sizes) allocator.allocate(bytes, index, slow[static_cast<std::size_t>(index)]);
  });
  Measured measured{.slow = {}, .reserved_per_requested = allocator.reserved_per_requested()};
  for (const auto& of_thread : slow) measured.slow.insert(measured.slow.end(), of_thread.begin(), of_thread.end());
  return measured;
}

// With pools, the place of a block in `live` tells its pool and its stream.
Measured churn(std::size_t blocks, std::size_t pools) {
  TimedAllocator allocator;
  const auto sizes = log_uniform_sizes(kLeast, kMost, 3 * blocks, 1);
  std::vector<std::string> tags;
  for (std::size_t pool = 0; pool < pools; ++pool) tags.push_back(fmt::format("pool {}", pool));
  std::mt19937 random(2);
  std::vector<void*> live(blocks);
  Measured measured;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t place = i < blocks ? i : random() % blocks;
    const int stream = static_cast<int>((pools != 0 ? place % pools : random()) % kStreams);
    if (live[place] != nullptr) (*allocator).deallocate(live[place]);
    if (pools != 0) (*allocator).begin_tagged(tags[place % pools]);
    live[place] = allocator.allocate(sizes[i], stream, measured.slow);
    if (pools != 0) (*allocator).end_tagged(tags[place % pools]);
    allocator.work(stream);
  }
  measured.reserved_per_requested = allocator.reserved_per_requested();
  for (void* const pointer : live) (*allocator).deallocate(pointer);
  return measured;
}

struct Percentiles {
  static constexpr double kRanks[] = {0.5, 0.99, 0.9999, 1};
  double us[std::size(kRanks)] = {};

  Percentiles(std::vector<Times> times, std::int64_t Times::*kind) {
    std::ranges::sort(times, {}, kind);
    for (std::size_t i = 0; i < std::size(kRanks) && !times.empty(); ++i) {
      us[i] = static_cast<double>(times[place_of_rank(kRanks[i], times.size())].*kind) / 1000;
    }
  }
};

void print_row(std::string_view name, std::size_t blocks, std::size_t calls, std::string_view clock,
               const Percentiles& shown) {
  fmt::print("{:<8} {:>8} {:>8} {:<5}", name, blocks, calls, clock);
  for (const double us : shown.us) fmt::print(" {:>9.1f}", us);
  fmt::print("\n");
}

void print_rows(std::string_view name, Measured (*measure)(std::size_t)) {
  constexpr std::size_t kFew = 10'000;
  constexpr std::size_t kMany = 100'000;
  const Measured few = measure(kFew);
  const Measured many = measure(kMany);
  for (const auto& [clock, kind] : {std::pair{"CPU", &Times::cpu}, std::pair{"wall", &Times::wall}}) {
    const Percentiles of_few(few.slow, kind);
    const Percentiles of_many(many.slow, kind);
    print_row(name, kFew, few.slow.size(), clock, of_few);
    print_row(name, kMany, many.slow.size(), clock, of_many);
    fmt::print("{:<8} {:>23}", "", "ratio");
    for (std::size_t i = 0; i < std::size(of_few.us); ++i) fmt::print(" {:>9.2f}", of_many.us[i] / of_few.us[i]);
    fmt::print("\n");
  }
  fmt::print("{:<8} {:>23} {:>9.4f} {:>9.4f}\n", "", "reserved/requested", few.reserved_per_requested,
             many.reserved_per_requested);
}

struct Work {
  std::string_view name;
  Measured (*measure)(std::size_t blocks);
};
constexpr Work kWorks[] = {
    {"growth", grow},
    {"churn", [](std::size_t blocks) { return churn(blocks, 0); }},
    {"pools", [](std::size_t blocks) { return churn(blocks, kPools); }},
};

// Prints the table of the named works; of all if none is named.
void print_table(const std::vector<std::string_view>& names) {
  fmt::print("{:<8} {:>8} {:>8} {:<5} {:>9} {:>9} {:>9} {:>9}\n", "µs", "blocks", "calls", "clock", "p50", "p99",
             "p99.99", "max");
  for (const Work& work : kWorks) {
    if (names.empty() || std::ranges::find(names, work.name) != names.end()) print_rows(work.name, work.measure);
  }
}

int run(const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    if (std::ranges::find(kWorks, name, &Work::name) != std::end(kWorks)) continue;
    fmt::print(stderr, "slow_paths: there is no work '{}'; there are growth, churn and pools\n", name);
    return 2;
  }
  start_a_thread();
  print_table(names);
  return 0;
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) { return cachalot::bench::run({argv + std::min(argc, 1), argv + argc}); }
