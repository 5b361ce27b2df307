// Measures the driver's calls on this machine's first GPU: a markdown table for docs/measurements and for the latency
// model. Says so and exits 0 where there is no GPU.
//
// `device_costs --simulated` runs the same calls on a simulated device: the host time of the simulation, which shows
// that the program works and nothing about any GPU.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/device.h"
#include "cachalot/simulated_device.h"
#if CACHALOT_HAS_CUDA
#include "device/cuda_device.h"
#endif

namespace cachalot {
namespace {

constexpr std::size_t kBlocks = 32;  // of each size: 2 GiB of the largest
constexpr int kEventRounds = 2000;
const std::size_t kSizes[] = {2 * kMiB, 8 * kMiB, 20 * kMiB, 64 * kMiB};
constexpr Stream kStream = nullptr;

// Microseconds that each of a number of calls took.
class Samples {
 public:
  template <typename Call>
  void time(Call call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    us_.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }

  // A row of the table. The first call is warm-up and left out when there are others.
  void print(std::string_view call, std::string_view size) {
    if (us_.size() > 1) us_.erase(us_.begin());
    std::sort(us_.begin(), us_.end());
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {} |\n", call, size, quantile(0.5), us_.front(), quantile(0.9),
               us_.size());
  }

 private:
  double quantile(double part) const {
    return us_[static_cast<std::size_t>(part * static_cast<double>(us_.size() - 1))];
  }

  std::vector<double> us_;
};

void print_heading(std::string_view device, std::string_view driver) {
  const std::time_t now = std::time(nullptr);
  char date[32] = "";
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  fmt::print("{}, {}, {}; host microseconds a call\n\n", date, device, driver);
  fmt::print("| call | size | median | least | 90 % | calls |\n|---|---|---|---|---|---|\n");
}

void print_handles(const DeviceProperties& handles) {
  const auto answer = [](bool is_so) { return is_so ? "yes" : "no"; };
  fmt::print("\nHandles of physical memory: by file descriptor {}, by fabric {}, for GPUDirect RDMA {}\n",
             answer(handles.shares_by_descriptor), answer(handles.shares_by_fabric), answer(handles.rdma_capable));
}

void measure_malloc(Device& device, std::size_t bytes) {
  Samples mallocs;
  Samples frees;
  std::vector<Address> addresses(kBlocks);
  for (Address& address : addresses) mallocs.time([&] { address = device.malloc(bytes).value(); });
  for (const Address address : addresses) frees.time([&] { device.free(address); });
  mallocs.print("cuMemAlloc", format_bytes(bytes));
  frees.print("cuMemFree", format_bytes(bytes));
}

void measure_virtual_memory(Device& device, std::size_t bytes) {
  const std::string size = format_bytes(bytes);
  const std::size_t range_bytes = kBlocks * bytes;
  Samples creates, maps, access_each, access_whole, unmaps, second_maps, second_access, releases;
  const Address range = device.reserve(range_bytes).value();
  const Address second_range = device.reserve(range_bytes).value();
  std::vector<MemoryHandle> handles(kBlocks);
  for (MemoryHandle& handle : handles) creates.time([&] { handle = device.create(bytes).value(); });

  const auto map_all = [&](Address at, Samples& samples) {
    for (std::size_t i = 0; i < kBlocks; ++i) samples.time([&] { device.map(at + i * bytes, bytes, handles[i]); });
  };
  const auto unmap_all = [&](Address at, Samples& samples) {
    for (std::size_t i = 0; i < kBlocks; ++i) samples.time([&] { device.unmap(at + i * bytes, bytes); });
  };
  map_all(range, maps);
  for (std::size_t i = 0; i < kBlocks; ++i) access_each.time([&] { device.set_access(range + i * bytes, bytes, {}); });
  map_all(second_range, second_maps);
  for (std::size_t i = 0; i < kBlocks; ++i)
    second_access.time([&] { device.set_access(second_range + i * bytes, bytes, {}); });
  unmap_all(second_range, unmaps);
  unmap_all(range, unmaps);
  for (int round = 0; round < 5; ++round) {
    Samples ignored;
    map_all(range, ignored);
    access_whole.time([&] { device.set_access(range, range_bytes, {}); });
    unmap_all(range, ignored);
  }
  for (const MemoryHandle handle : handles) releases.time([&] { device.release(handle); });
  device.unreserve(second_range, range_bytes);
  device.unreserve(range, range_bytes);

  creates.print("cuMemCreate", size);
  maps.print("cuMemMap", size);
  second_maps.print("cuMemMap, the handle's second address", size);
  access_each.print("cuMemSetAccess, one handle", size);
  second_access.print("cuMemSetAccess, one handle's second address", size);
  access_whole.print(fmt::format("cuMemSetAccess, one call for {} handles", kBlocks), size);
  unmaps.print("cuMemUnmap", size);
  releases.print("cuMemRelease", size);
}

void measure_events(Device& device, std::string_view how) {
  Samples creates, records, queries, hints, waits;
  std::vector<Event> events(64);
  for (Event& event : events) creates.time([&] { event = device.event_create(); });
  for (int round = 0; round < kEventRounds; ++round) {
    const Event event = events[static_cast<std::size_t>(round) % events.size()];
    records.time([&] { device.event_record(event, kStream); });
    waits.time([&] { device.stream_wait(kStream, event); });
    if (round % 64 == 63) device.synchronize();  // the queue does not fill up
  }
  device.synchronize();
  for (int round = 0; round < kEventRounds; ++round) {
    queries.time([&] { device.event_query(events.front()); });
    hints.time([&] { device.completion_hint(kStream); });
  }
  for (const Event event : events) device.event_destroy(event);
  creates.print(fmt::format("cuEventCreate, {}", how), "");
  records.print(fmt::format("event_record, {}", how), "");
  waits.print(fmt::format("cuStreamWaitEvent, {}", how), "");
  queries.print(fmt::format("cuEventQuery of a done event, {}", how), "");
  hints.print(fmt::format("completion_hint, {}", how), "");
}

// `without_hints`: the same device; the difference of event_record is cuStreamWriteValue64 and the question whether the
// stream captures.
void measure_all(Device& device, Device& without_hints) {
  for (const std::size_t bytes : kSizes) measure_malloc(device, bytes);
  if (device.properties().virtual_memory) {
    for (const std::size_t bytes : kSizes) measure_virtual_memory(device, bytes);
  }
  measure_events(without_hints, "without hints");
  measure_events(device, "with hints (cuStreamWriteValue64)");
  print_handles(device.properties());
}

int measure_simulated() {
  SimulatedDevice device;
  SimulatedDevice without_hints({.completion_hints = false});
  print_heading(device.properties().name, "no driver: the host time of the simulation");
  measure_all(device, without_hints);
  return 0;
}

#if CACHALOT_HAS_CUDA
int measure_gpu() {
  const auto devices = cuda_devices();
  if (devices.empty()) {
    fmt::print("device_costs: no GPU here, nothing measured\n");
    return 0;
  }
  CudaDevice without_hints(0, {.completion_hints = false});
  const int driver = cuda_driver_version();
  print_heading(devices.front()->properties().name,
                fmt::format("driver for CUDA {}.{}", driver / 1000, driver % 1000 / 10));
  measure_all(*devices.front(), without_hints);
  return 0;
}
#else
int measure_gpu() {
  fmt::print("device_costs: built without CUDA's headers, nothing measured\n");
  return 0;
}
#endif

}  // namespace
}  // namespace cachalot

int main(int argc, char** argv) {
  const bool simulated = argc == 2 && std::string_view(argv[1]) == "--simulated";
  if (argc > 1 && !simulated) {
    fmt::print(stderr, "usage: device_costs [--simulated]\n");
    return 2;
  }
  try {
    return simulated ? cachalot::measure_simulated() : cachalot::measure_gpu();
  } catch (const std::exception& error) {
    fmt::print(stderr, "device_costs: {}\n", error.what());
    return 1;
  }
}
