// Batches to the GPU and back: from ordinary memory, from memory pinned at each step, and from a pinned pool with copies
// that overlap the work. README.md has what it prints and what follows from it.
#include <fmt/format.h>

#include <string>

#include "examples/async_transfer/break_even.h"
#include "examples/async_transfer/schemes.h"
#include "examples/common/cuda.h"
#include "examples/common/program.h"

namespace {

using async_transfer::BreakEven;
using async_transfer::Job;
using async_transfer::Results;
using examples::Relations;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr int kMostBuffers = 3;
constexpr double kLeastHidden = 0.5;  // of the time of a step's two copies from and to ordinary memory

struct Options {
  std::size_t mib = 8;
  int steps = 24;
  int kernels = 32;
};

struct Times {
  double pageable_us = 0;
  double pinned_us = 0;
  double two_buffers_us = 0;  // once the pool has what it needs
};

Job job_of(const Options& options) {
  return {.count = options.mib * kMiB / sizeof(float), .steps = options.steps, .kernels = options.kernels};
}

std::string size_text(std::size_t bytes) {
  return bytes < kMiB ? fmt::format("{} KiB", bytes / kKiB) : fmt::format("{} MiB", bytes / kMiB);
}

// Measures and prints the ways, one after the other.
class Comparison {
 public:
  Comparison(const Job& job, cachalot::PinnedHostAllocator& host, Results& results)
      : job_(job), gpu_(cachalot::cuda_devices()), host_(host), results_(results) {}

  Times measure() {
    fmt::print("{:<44}{:>10}{:>8}\n", "", "us a step", "speedup");
    pageable_us_ = pageable(job_, gpu_, results_);
    print_row("pageable, the host waits", pageable_us_);
    const double pinned_us = pinned_at_each_step(job_, gpu_, results_);
    print_row("pinned at each step, the host waits", pinned_us);
    print_row("pinned pool, the first run, which pins", overlapped(job_, gpu_, host_, kMostBuffers, results_));
    const double two_buffers_us = overlapped(job_, gpu_, host_, 2, results_);
    print_row("pinned pool, two buffers, overlapped", two_buffers_us);
    return {pageable_us_, pinned_us, two_buffers_us};
  }

  // A run of the pool that must find all it needs there.
  void check_pool(Relations& relations) {
    const auto before = host_.memory_stats();
    print_row("pinned pool, three buffers, overlapped", overlapped(job_, gpu_, host_, kMostBuffers, results_));
    const auto after = host_.memory_stats();
    relations.holds(after.num_device_alloc == before.num_device_alloc, "a later run calls cudaHostAlloc no more");
    relations.holds(after.allocation.all.allocated - before.allocation.all.allocated == 2 * job_.steps,
                    "a step takes two buffers from the pool");
    relations.holds(host_.memory_allocated() == 0, "every buffer is back in the pool");
    relations.holds(host_.cache().validate().empty(), "the pool is sound");
  }

 private:
  void print_row(const std::string& name, double us) const {
    fmt::print("{:<44}{:>10.0f}{:>8.2f}\n", name, us, pageable_us_ / us);
  }

  const Job job_;
  cachalot::CachingAllocator gpu_;
  cachalot::PinnedHostAllocator& host_;
  Results& results_;
  double pageable_us_ = 0;
};

void print_break_even(const BreakEven& measured) {
  const auto copies = measured.copies();
  fmt::print("{:<12}{:>16.0f}{:>16.1f}{:>14.1f}{:>18}\n", size_text(measured.bytes), measured.pinning_us,
             measured.pageable_us, measured.pinned_us, copies ? fmt::format("{}", *copies) : "never");
}

void print_break_evens() {
  fmt::print("\n{:<12}{:>16}{:>16}{:>14}{:>18}\n", "buffer", "pin, unpin us", "pageable us", "pinned us",
             "pays from copies");
  for (const std::size_t bytes : {64 * kKiB, kMiB, 8 * kMiB, 64 * kMiB}) {
    print_break_even(async_transfer::measure_break_even(bytes));
  }
}

void print_pool(const cachalot::PinnedHostAllocator& host) {
  const cachalot::DeviceStats stats = host.memory_stats();
  fmt::print("\nthe pinned pool: {} buffers handed out, {} calls of cudaHostAlloc, {} pinned, at most {} in use\n",
             stats.allocation.all.allocated, stats.num_device_alloc,
             size_text(static_cast<std::size_t>(stats.reserved_bytes.all.peak)),
             size_text(static_cast<std::size_t>(stats.active_bytes.all.peak)));
}

// Only where pinned copies are faster at all, which is not so where they take a fixed time.
void check_times(const Job& job, const Times& times, Relations& relations) {
  const BreakEven copies = async_transfer::measure_break_even(job.bytes());
  if (!copies.copies()) {
    fmt::print(
        "copies take no longer from pageable memory here (CACHALOT_SIM=copies:published?): no claim about time\n");
    return;
  }
  relations.holds(times.pinned_us > times.two_buffers_us, "to pin at each step is slower than to reuse");
  relations.holds(times.pageable_us - times.two_buffers_us > kLeastHidden * 2 * copies.pageable_us,
                  "two buffers save or hide half of what the copies of ordinary memory take");
}

int compare(const Options& options) {
  const auto devices = cachalot::cuda_devices();
  if (devices.empty()) {
    fmt::print("no GPU here; `cachalot simulate` has one\n");
    return 0;
  }
  const Job job = job_of(options);
  fmt::print("on {}: {} steps of {}, {} kernels each\n", devices[0]->properties().name, job.steps,
             size_text(job.bytes()), job.kernels);
  Relations relations;
  Results results(job);
  cachalot::PinnedHostAllocator host(devices[0]);
  Comparison comparison(job, host, results);
  const Times times = comparison.measure();
  comparison.check_pool(relations);
  print_pool(host);
  print_break_evens();
  check_times(job, times, relations);
  fmt::print("\n{}\n", results.description());
  relations.holds(results.are_right(), "every result is the one of its batch");
  return relations.finish();
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App app("Batches to the GPU and back, in three ways", "async_transfer");
  app.add_option("--mib", options.mib, "size of a batch in MiB")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--steps", options.steps, "batches")->check(CLI::Range(1, 1000000))->capture_default_str();
  app.add_option("--kernels", options.kernels, "kernels on each batch")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  return examples::run(app, count, arguments, [&] { return compare(options); });
}
