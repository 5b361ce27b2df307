// Measures the cost of publishing statistics: time of a malloc and a free, and processor time of the publisher's thread with a
// reader at 1 and at 10 Hz.
//
//   bench/live                       prints a table; fails if a figure is above its target (20 s)
//   bench/live pairs <0|1> <count>   so many pairs without or with a publisher, for valgrind (bench/live.sh)
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "bench/workloads.h"
#include "cachalot/statistics_publisher.h"
#include "tools/live/sample.h"

namespace cachalot::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kMostNsPerPair = 1;
constexpr double kMostShare = 0.001;  // of a processor

struct Folder {
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  const std::string path = fmt::format("/dev/shm/cachalot_bench_{}", getpid());
  PublishOptions options() const {
    PublishOptions options;
    options.directory = path;
    return options;
  }
};

// A heap as large as that of a large model's training: thousands of blocks, free ones among them, and some pools.
class LivingHeap {
 public:
  LivingHeap() {
    std::mt19937 random(1);
    for (int tag = 0; tag < 4; ++tag) {
      allocator_->begin_tagged(fmt::format("tag {}", tag));
      live_.push_back(allocator_->allocate(256 * kMiB));
      allocator_->end_tagged(fmt::format("tag {}", tag));
    }
    for (int i = 0; i < 8000; ++i) live_.push_back(allocator_->allocate(512 + random() % (2 * kMiB)));
    for (std::size_t i = 4; i < live_.size(); i += 2) allocator_->deallocate(std::exchange(live_[i], nullptr));
  }
  ~LivingHeap() {
    for (void* ptr : live_) allocator_->deallocate(ptr);
  }
  CachingAllocator& allocator() { return *allocator_; }

 private:
  static std::unique_ptr<CachingAllocator> with_pages() {
    SimulatedDevice::Config config;
    config.memory_bytes = std::size_t{1} << 40;
    std::vector<std::shared_ptr<Device>> devices = {std::make_shared<SimulatedDevice>(config)};
    return std::make_unique<CachingAllocator>(std::move(devices), parse_options("heap:pages,immortal_streams:True"));
  }

  std::unique_ptr<CachingAllocator> allocator_ = with_pages();
  std::vector<void*> live_;
};

double ns_per_pair(CachingAllocator& allocator, std::size_t bytes, Clock::duration time) {
  constexpr int kAtOnce = 1000;
  std::uint64_t pairs = 0;
  const Clock::time_point begin = Clock::now();
  Clock::time_point now = begin;
  for (; now - begin < time; now = Clock::now()) {
    for (int i = 0; i < kAtOnce; ++i) allocator.deallocate(allocator.allocate(bytes));
    pairs += kAtOnce;
  }
  return std::chrono::duration<double, std::nano>(now - begin).count() / static_cast<double>(pairs);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Pair {
  double without, with;
};

// Rounds with and without a publisher take turns, so that what else the machine does meets both.
Pair measure_pair(CachingAllocator& allocator, const Folder& folder, std::size_t bytes) {
  std::vector<double> without, with;
  for (int round = 0; round < 12; ++round) {
    without.push_back(ns_per_pair(allocator, bytes, milliseconds(150)));
    const StatisticsPublisher publisher(allocator, folder.options());
    tools::live::read_pages(folder.path);  // a reader: it is refreshed at 10 Hz
    with.push_back(ns_per_pair(allocator, bytes, milliseconds(150)));
  }
  return {median(without), median(with)};
}

// Processor time of the publisher's thread per time, while a reader reads at this rate.
double publisher_share(CachingAllocator& allocator, const Folder& folder, int reads_per_s) {
  const StatisticsPublisher publisher(allocator, folder.options());
  std::this_thread::sleep_for(milliseconds(300));
  std::optional<tools::live::ProcessSample> first;
  tools::live::ProcessSample last;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(5);
  while (Clock::now() < end) {
    std::vector<tools::live::ProcessSample> processes = tools::live::read_pages(folder.path).processes;
    last = processes.at(0);
    if (!first) first = last;
    std::this_thread::sleep_for(milliseconds(1000 / reads_per_s));
  }
  return (last.cpu_s - first->cpu_s) / (last.elapsed_s - first->elapsed_s);
}

bool print_row(const std::string& what, double target, double figure, const char* format) {
  const bool is_met = figure <= target;
  fmt::print("{:<52} {:>10} {:>10}  {}\n", what, fmt::format(fmt::runtime(format), target),
             fmt::format(fmt::runtime(format), figure), is_met ? "met" : "MISSED");
  return is_met;
}

int print_table() {
  const Folder folder;
  LivingHeap heap;
  fmt::print("{:<52} {:>10} {:>10}\n", "", "target <=", "measured");
  bool is_met = true;
  for (const std::size_t bytes : {std::size_t{512}, kMiB}) {
    const Pair pair = measure_pair(heap.allocator(), folder, bytes);
    const std::string what = fmt::format("ns more a pair of {} ({:.1f} without)", format_bytes(bytes), pair.without);
    is_met = print_row(what, kMostNsPerPair, pair.with - pair.without, "{:.2f}") && is_met;
  }
  for (const int rate : {1, 10}) {
    const double share = publisher_share(heap.allocator(), folder, rate);
    const std::string what = fmt::format("% of a processor, with a reader at {} Hz", rate);
    is_met = print_row(what, 100 * kMostShare, 100 * share, "{:.3f}") && is_met;
  }
  return is_met ? 0 : 1;
}

int run_pairs(bool publishes, int count) {
  const Folder folder;
  const std::unique_ptr<CachingAllocator> allocator = make_allocator();
  start_a_thread();
  PublishOptions options = folder.options();
  options.interval = std::chrono::hours(1);
  std::optional<StatisticsPublisher> publisher;
  if (publishes) publisher.emplace(*allocator, options);
  for (int i = 0; i < count; ++i) allocator->deallocate(allocator->allocate(4096));
  return 0;
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  using namespace cachalot::bench;
  if (argc == 4 && std::string_view(argv[1]) == "pairs") return run_pairs(std::atoi(argv[2]) != 0, std::atoi(argv[3]));
  return print_table();
}
