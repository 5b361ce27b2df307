// Threads that fill a device and keep it full for as long as asked, while calls of it fail at random and the cache is
// emptied in storms. At every interval all stand still: validate() must find nothing, and the live memory must be that
// of the threads. Prints a line per interval, and at the end latencies and whether the process's memory stayed flat.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/resident_memory.h"
#include "tests/soak/worker.h"
#include "tests/soak/world.h"

namespace cachalot {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Request {
  double seconds = 10;
  unsigned threads = 4;
  int intervals = 30;
  std::string options = "";
  std::size_t memory_mib = 2048;
};

// Faults and storms come this often.
constexpr milliseconds kFaultPeriod{20};
constexpr milliseconds kStormPeriod{1000};
constexpr int kCallsAStorm = 50;
constexpr std::int64_t kSimulatedNsAPeriod = 2'000'000;
constexpr double kMostGrowth = 0.01;
constexpr double kShortSeconds = 60;          // shorter runs do not become steady
constexpr std::size_t kLeastInspections = 3;  // one for each third of the run

class Soak {
 public:
  explicit Soak(const Request& request)
      : request_(request), world_(request.options, request.memory_mib * kMiB), begin_(Clock::now()) {
    for (unsigned i = 0; i < request.threads; ++i) workers_.push_back(std::make_unique<SoakWorker>(world_, i));
    resident_.reserve(static_cast<std::size_t>(request.intervals) + 1);
  }

  // "" or what is wrong.
  std::string run() {
    fmt::print("soak of {} threads for {:g} s, {} MiB, options \"{}\"\n", request_.threads, request_.seconds,
               request_.memory_mib, request_.options);
    fmt::print("{:>8} {:>12} {:>7} {:>6} {:>8} {:>9} {:>9} {:>8}\n", "s", "operations", "live", "full", "faults",
               "out of m.", "resident", "tables");
    for (const auto& worker : workers_) worker->warm_up();
    std::vector<std::thread> threads;
    for (const auto& worker : workers_) threads.emplace_back([&worker] { worker->run(); });
    disturb_and_inspect();
    world_.end();
    for (std::thread& thread : threads) thread.join();
    if (world_.trouble().empty()) finish();
    return world_.trouble();
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void disturb_and_inspect() {
    int inspected = 0;
    auto next_storm = Clock::now() + kStormPeriod;
    while (!world_.is_over() && elapsed() < request_.seconds) {
      std::this_thread::sleep_for(kFaultPeriod);
      world_.device().advance(kSimulatedNsAPeriod);
      plan_a_fault();
      if (Clock::now() >= next_storm) {
        storm();
        next_storm = Clock::now() + kStormPeriod;
      }
      if (elapsed() * request_.intervals >= request_.seconds * (inspected + 1)) {
        inspect();
        ++inspected;
      }
    }
  }

  void plan_a_fault() {
    const Fault fault{.nth = 1 + random_() % 200, .out_of_memory = random_() % 2 == 0, .code = kInjectedCode};
    world_.device().set_faults({fault});
  }

  void storm() {
    for (int i = 0; i < kCallsAStorm && !world_.is_over(); ++i) {
      try {
        world_.allocator().empty_cache();
        if (i % 8 == 0) world_.host().empty_cache();
        if (i % 8 == 1) world_.pool().trim(4);
      } catch (const CudaError&) {  // made to fail
      }
    }
  }

  void inspect() {
    const SoakWorld::Stillness still = world_.stand_still();
    expect_sound();
    resident_.push_back(resident_bytes());
    const double full =
        static_cast<double>(world_.device().used_bytes()) / static_cast<double>(request_.memory_mib * kMiB);
    fmt::print("{:>8.1f} {:>12} {:>7} {:>5.1f}% {:>8} {:>9} {:>5} KiB {:>4} KiB\n", elapsed(),
               sum(&SoakWorker::Figures::operations), live(), 100 * full, world_.device().faults_injected(),
               sum(&SoakWorker::Figures::out_of_memory), resident_.back() / kKiB,
               world_.allocator().metadata_bytes() / kKiB);
    std::fflush(stdout);
  }

  std::uint64_t sum(std::uint64_t SoakWorker::Figures::*figure) const {
    std::uint64_t sum = 0;
    for (const auto& worker : workers_) sum += worker->figures().*figure;
    return sum;
  }

  std::size_t live() const {
    std::size_t live = world_.posted();
    for (const auto& worker : workers_) live += worker->live();
    return live;
  }

  void expect_sound() {
    for (const std::string& broken :
         {world_.allocator().validate(), world_.pool().validate(), world_.host().cache().validate()}) {
      if (!broken.empty()) world_.trouble(broken);
    }
    const std::size_t slabs = world_.pool().stats().slots / SoakWorld::kSlotsASlab;
    const auto counted = static_cast<std::size_t>(world_.allocator().memory_stats().allocation.all.current);
    if (counted != live() + slabs) {
      world_.trouble(
          fmt::format("{} allocations are counted; the threads hold {} and the pool {}", counted, live(), slabs));
    }
    std::size_t buffers = 0;
    for (const auto& worker : workers_) buffers += worker->live_buffers();
    const auto pinned = static_cast<std::size_t>(world_.host().memory_stats().allocation.all.current);
    if (pinned != buffers) world_.trouble(fmt::format("{} pinned buffers are counted; {} are held", pinned, buffers));
  }

  void finish() {
    world_.device().set_faults({});
    for (const auto& worker : workers_) worker->give_up();
    world_.pool().trim();
    world_.allocator().empty_cache();
    world_.host().empty_cache();
    expect_sound();
    if (world_.device().used_bytes() != 0) {
      world_.trouble(fmt::format("at the end, {} bytes of the device are in use", world_.device().used_bytes()));
    }
    if (world_.host().memory_reserved() != 0) world_.trouble("at the end, pinned memory is left");
    print_latencies();
    expect_flat();
    expect_worked_and_inspected();
  }

  void print_latencies() const {
    SoakWorker::Figures all;
    for (const auto& worker : workers_) {
      all.allocate.add(worker->figures().allocate);
      all.deallocate.add(worker->figures().deallocate);
    }
    fmt::print("\n| ns | calls | median | 99 % | 99.9 % | 99.99 % | longest |\n|---|---|---|---|---|---|---|\n");
    const auto row = [](const char* name, const Latencies& of) {
      fmt::print("| {} | {} | {} | {} | {} | {} | {} |\n", name, of.count(), of.percentile(0.5), of.percentile(0.99),
                 of.percentile(0.999), of.percentile(0.9999), of.longest());
    };
    row("allocate", all.allocate);
    row("deallocate", all.deallocate);
  }

  // The last third of the run holds no more than the third before it did.
  void expect_flat() {
    const std::size_t third = resident_.size() / 3;
    if (third == 0) return;
    const auto most = [&](std::size_t from) {
      return static_cast<double>(*std::max_element(resident_.begin() + static_cast<std::ptrdiff_t>(from),
                                                   resident_.begin() + static_cast<std::ptrdiff_t>(from + third)));
    };
    const double growth = most(resident_.size() - third) / most(resident_.size() - 2 * third) - 1;
    fmt::print("\nmemory of the process, last third of the run against the one before: {:+.2f} %\n", 100 * growth);
    if (growth > kMostGrowth && request_.seconds >= kShortSeconds)
      world_.trouble(fmt::format("the process's memory has grown by {:.2f} %", 100 * growth));
  }

  // Else that nothing was found says nothing.
  void expect_worked_and_inspected() {
    if (sum(&SoakWorker::Figures::operations) == 0) world_.trouble("the threads have not come to a single operation");
    const std::size_t least = std::max(kLeastInspections, static_cast<std::size_t>(request_.intervals + 1) / 2);
    if (resident_.size() < least && request_.seconds >= kShortSeconds) {
      world_.trouble(fmt::format("there was time for {} inspections of {} that were asked for; {} are the least",
                                 resident_.size(), request_.intervals, least));
    }
  }

  const Request request_;
  SoakWorld world_;
  const Clock::time_point begin_;
  std::mt19937_64 random_{42};
  std::vector<std::unique_ptr<SoakWorker>> workers_;
  std::vector<std::size_t> resident_;
};

}  // namespace
}  // namespace cachalot

int main(int argc, char** argv) {
  // Memory that one thread frees serves the others. With an arena for each, the C library's own scraps of memory grow
  // by more than the growth that is looked for here.
  mallopt(M_ARENA_MAX, 1);
  cachalot::Request request;
  CLI::App app{"Fills a simulated device from several threads, with failing calls, and watches that nothing is lost."};
  app.add_option("--seconds", request.seconds, "how long, in seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", request.threads, "threads that allocate")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--intervals", request.intervals, "inspections in all")
      ->check(CLI::Range(3, 100'000))
      ->capture_default_str();
  app.add_option("--options", request.options, "the allocator's options, as in CACHALOT_CONF");
  app.add_option("--memory", request.memory_mib, "of the device, in MiB")
      ->check(CLI::Range(256, 1'000'000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const std::string trouble = cachalot::Soak(request).run();
    if (trouble.empty()) return 0;
    fmt::print(stderr, "soak: {}\n", trouble);
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak: {}\n", error.what());
  }
  return 1;
}
