// Measures putting a tag to sleep and waking it, per GiB: a markdown table. On a simulated device, whose clock counts
// the driver's calls alone; on the machine's first GPU as well, if there is one and the library was built for it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"

namespace cachalot {
namespace {

constexpr std::size_t kBytes = kGiB;
constexpr int kCycles = 3;  // the best counts
constexpr const char* kTag = "weights";

using NowMs = std::function<double()>;

double took_ms(const NowMs& now, const std::function<void()>& action) {
  const double begin = now();
  action();
  return now() - begin;
}

void print_row(std::string_view name, const std::shared_ptr<Device>& device, const NowMs& now, std::size_t block,
               bool save) {
  CachingAllocator allocator({device}, parse_options("heap:pages"));
  allocator.begin_tagged(kTag);
  for (std::size_t bytes = 0; bytes < kBytes; bytes += block) allocator.allocate(block);
  allocator.end_tagged(kTag);
  std::vector<double> sleeps, wakes;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    sleeps.push_back(took_ms(now, [&] { allocator.release_physical(kTag, save); }));
    wakes.push_back(took_ms(now, [&] { allocator.restore_physical(kTag); }));
  }
  const auto best = [](const std::vector<double>& ms) { return *std::min_element(ms.begin(), ms.end()); };
  fmt::print("| {} | {} | {} | {:.2f} | {:.2f} |\n", name, format_bytes(block), save ? "saved" : "not saved",
             best(sleeps), best(wakes));
}

void print_rows(std::string_view name, const std::shared_ptr<Device>& device, const NowMs& now) {
  for (const bool save : {false, true}) {
    for (const std::size_t block : {256 * kMiB, 8 * kMiB, 64 * kKiB}) print_row(name, device, now, block, save);
  }
}

void print_table() {
  fmt::print("| device | blocks of | content | sleep, ms a GiB | wake, ms a GiB |\n|---|---|---|---|---|\n");
  const auto simulated = std::make_shared<SimulatedDevice>();
  print_rows("simulated", simulated, [&] { return static_cast<double>(simulated->clock_ns()) / 1e6; });
  const std::vector<std::shared_ptr<Device>> gpus = cuda_devices();
  if (gpus.empty()) return;
  print_rows(gpus.front()->properties().name, gpus.front(), [] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
  });
}

}  // namespace
}  // namespace cachalot

int main() {
  try {
    cachalot::print_table();
  } catch (const std::exception& error) {
    fmt::print(stderr, "sleep: {}\n", error.what());
    return 1;
  }
  return 0;
}
