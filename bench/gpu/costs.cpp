// Measures the cost of each driver call for the host, idle and under a running kernel, and whether it waits for that kernel. The
// calls are those of CudaDevice, so that the figures are a LatencyModel's (device_timing.cpp).
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"

namespace cachalot::gpu {
namespace {

using std::chrono::milliseconds;

// Times of calls, by their kind.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;

  template <typename Call>
  auto time(DeviceCall kind, Call&& call) {
    before();
    const auto start = host_time();
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      stop(kind, start);
    } else {
      auto result = call();
      stop(kind, start);
      return result;
    }
  }

  double median_us(DeviceCall kind) const {
    std::vector<double> times = times_us_[index(kind)];
    if (times.empty()) return -1;
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }

 protected:
  static std::size_t index(DeviceCall kind) { return static_cast<std::size_t>(kind); }
  virtual void before() {}
  virtual void after(DeviceCall) {}

 private:
  void stop(DeviceCall kind, std::chrono::nanoseconds start) {
    times_us_[index(kind)].push_back(std::chrono::duration<double, std::micro>(host_time() - start).count());
    after(kind);
  }

  std::array<std::vector<double>, kDeviceCallCount> times_us_;
};

// Each call under a kernel on another stream. A call waits if the kernel is done when the call returns, each time.
class BusyStopwatch final : public Stopwatch {
 public:
  bool waits(DeviceCall kind) const { return calls_[index(kind)] > 0 && waits_[index(kind)] == calls_[index(kind)]; }

 private:
  static constexpr milliseconds kKernel{60};

  void before() override {
    stream_.synchronize();
    run_for(stream_, kKernel);
  }
  void after(DeviceCall kind) override {
    ++calls_[index(kind)];
    waits_[index(kind)] += !stream_.is_busy();
    stream_.synchronize();
  }

  OwnStream stream_;
  std::array<int, kDeviceCallCount> calls_ = {};
  std::array<int, kDeviceCallCount> waits_ = {};
};

// Sharing may be refused, in a container for one.
template <typename Calls>
void unless_refused(const std::string& call, Calls&& calls) {
  try {
    calls();
  } catch (const CudaError& error) {
    fact(call + "/refused", error.what());
  }
}

void live_by_malloc(Device& device, std::size_t bytes, Stream stream, Stopwatch& watch) {
  const Address address = watch.time(DeviceCall::malloc, [&] { return device.malloc(bytes).value(); });
  watch.time(DeviceCall::fill, [&] { device.fill(address, 1, bytes, stream); });
  require("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  unless_refused("ipc_export", [&] { watch.time(DeviceCall::ipc_export, [&] { return device.ipc_export(address); }); });
  watch.time(DeviceCall::free, [&] { device.free(address); });
}

void share(Device& device, MemoryHandle handle, Stopwatch& watch) {
  const ShareableHandle shared = watch.time(DeviceCall::export_handle, [&] { return device.export_handle(handle); });
  const MemoryHandle imported = watch.time(DeviceCall::import_handle, [&] { return device.import_handle(shared); });
  device.release(imported);
  if (shared.kind == ShareableHandle::Kind::descriptor) close(shared.descriptor);
}

void live_by_mapping(Device& device, std::size_t bytes, Stopwatch& watch) {
  const Address address = watch.time(DeviceCall::reserve, [&] { return device.reserve(bytes).value(); });
  const MemoryHandle handle = watch.time(DeviceCall::create, [&] { return device.create(bytes).value(); });
  watch.time(DeviceCall::map, [&] { device.map(address, bytes, handle); });
  watch.time(DeviceCall::set_access, [&] { device.set_access(address, bytes, {}); });
  watch.time(DeviceCall::unmap, [&] { device.unmap(address, bytes); });
  watch.time(DeviceCall::release, [&] { device.release(handle); });
  watch.time(DeviceCall::unreserve, [&] { device.unreserve(address, bytes); });
}

void live_on_host(Device& device, std::size_t bytes, Stopwatch& watch) {
  const Address address = device.malloc(bytes).value();
  void* const host = watch.time(DeviceCall::host_malloc, [&] { return device.host_malloc(bytes); });
  if (!host) throw std::runtime_error("host_malloc: the host has no memory");
  watch.time(DeviceCall::copy_from_host, [&] { device.copy_from_host(address, host, bytes); });
  watch.time(DeviceCall::copy_to_host, [&] { device.copy_to_host(host, address, bytes); });
  watch.time(DeviceCall::host_free, [&] { device.host_free(host); });
  device.free(address);
}

void use_events(Device& device, Stream stream, Stopwatch& watch) {
  const Event event = watch.time(DeviceCall::event_create, [&] { return device.event_create(); });
  watch.time(DeviceCall::event_record, [&] { device.event_record(event, stream); });
  watch.time(DeviceCall::stream_wait, [&] { device.stream_wait(stream, event); });
  watch.time(DeviceCall::event_synchronize, [&] { device.event_synchronize(event); });
  watch.time(DeviceCall::event_query, [&] { return device.event_query(event); });
  watch.time(DeviceCall::event_destroy, [&] { device.event_destroy(event); });
  watch.time(DeviceCall::capture_status, [&] { return device.capture_status(stream); });
  watch.time(DeviceCall::memory_info, [&] { return device.memory_info(); });
  watch.time(DeviceCall::synchronize, [&] { device.synchronize(); });
}

void live_by_sharing(Device& device, std::size_t bytes, Stopwatch& watch) {
  const MemoryHandle handle = device.create(bytes).value();
  unless_refused("export_handle", [&] { share(device, handle, watch); });
  device.release(handle);
}

void live_once(Device& device, std::size_t bytes, Stream stream, Stopwatch& watch) {
  live_by_malloc(device, bytes, stream, watch);
  live_on_host(device, bytes, watch);
  use_events(device, stream, watch);
  if (!device.properties().virtual_memory) return;
  live_by_mapping(device, bytes, watch);
  live_by_sharing(device, bytes, watch);
}

bool depends_on_bytes(DeviceCall kind) {
  switch (kind) {
    case DeviceCall::malloc:
    case DeviceCall::free:
    case DeviceCall::create:
    case DeviceCall::map:
    case DeviceCall::set_access:
    case DeviceCall::unmap:
    case DeviceCall::release:
    case DeviceCall::host_malloc:
    case DeviceCall::host_free:
    case DeviceCall::copy_to_host:
    case DeviceCall::copy_from_host:
      return true;
    default:
      return false;
  }
}

std::vector<DeviceCall> all_kinds() {
  std::vector<DeviceCall> kinds;
  for (std::size_t i = 0; i < kDeviceCallCount; ++i) kinds.push_back(static_cast<DeviceCall>(i));
  return kinds;
}

// The line through the medians of the smallest and the largest size.
void measure_idle(const Effort& effort) {
  constexpr std::size_t kSmall = 2 * kMiB;
  constexpr std::size_t kLarge = 128 * kMiB;
  const auto device = cuda_devices().at(0);
  const OwnStream stream;
  std::array<Stopwatch, 2> watches;
  Stopwatch warm_up;
  live_once(*device, kSmall, stream, warm_up);
  for (std::uint64_t round = 0; round < effort.rounds(51, 3); ++round) {
    live_once(*device, kSmall, stream, watches[0]);
    live_once(*device, kLarge, stream, watches[1]);
  }
  int measured = 0;
  for (const DeviceCall kind : all_kinds()) {
    const double small_us = watches[0].median_us(kind);
    if (small_us < 0) continue;
    ++measured;
    const double large_us = watches[1].median_us(kind);
    const double us_per_mib = depends_on_bytes(kind) ? (large_us - small_us) / ((kLarge - kSmall) / kMiB) : 0;
    const std::string name = std::string("latency/") + to_string(kind);
    fact(name + "/us", std::max(0.0, small_us - us_per_mib * 2), "us");
    fact(name + "/us_per_mib", std::max(0.0, us_per_mib), "us");
  }
  check("idle", measured >= 20, std::to_string(measured) + " kinds of calls measured");
}

// Placement counts on the calls that map in stream order: a program whose kernels run for seconds must not stop for them.
void measure_busy(const Effort& effort) {
  const auto device = cuda_devices().at(0);
  const OwnStream stream;
  BusyStopwatch watch;
  for (std::uint64_t round = 0; round < effort.rounds(5, 1); ++round) live_once(*device, 32 * kMiB, stream, watch);
  std::string waiting;
  for (const DeviceCall kind : all_kinds()) {
    if (watch.median_us(kind) < 0) continue;
    const std::string name = std::string("busy/") + to_string(kind);
    fact(name, watch.median_us(kind), watch.waits(kind) ? "us, waits for running kernels" : "us, does not wait");
    if (watch.waits(kind)) waiting += std::string(waiting.empty() ? "" : ", ") + to_string(kind);
  }
  for (const DeviceCall kind : {DeviceCall::create, DeviceCall::map, DeviceCall::set_access, DeviceCall::unmap,
                                DeviceCall::release, DeviceCall::event_record, DeviceCall::event_query}) {
    check(std::string("does_not_wait/") + to_string(kind), !watch.waits(kind),
          watch.waits(kind) ? "it returns only after a kernel on another stream" : "it returns while a kernel runs");
  }
  check("busy", watch.waits(DeviceCall::synchronize), "these wait for running kernels: " + waiting);
}

struct Batch {
  std::size_t handle_bytes;
  int handles;
};

constexpr milliseconds kBusyTime{500};

struct BatchTime {
  double us = 0;
  bool kernel_runs = false;  // still, on the busy stream
};

// The calls of one batch: `handles` handles side by side, opened by one call.
BatchTime measure_batch(Device& device, const Batch& batch, const OwnStream* busy) {
  const std::size_t bytes = batch.handle_bytes * static_cast<std::size_t>(batch.handles);
  const std::string name = "batch/" + std::to_string(batch.handles) + " x " +
                           std::to_string(batch.handle_bytes / kMiB) + " MiB/" + (busy ? "busy/" : "idle/");
  const auto at = [&](Address range, int i) { return range + static_cast<std::size_t>(i) * batch.handle_bytes; };
  const Address first = device.reserve(bytes).value();
  const Address second = device.reserve(bytes).value();
  std::vector<MemoryHandle> handles(static_cast<std::size_t>(batch.handles));
  if (busy) run_for(*busy, kBusyTime);
  BatchTime sum;
  const auto time = [&](const char* call, auto&& calls) {
    const double us = microseconds_of(calls);
    sum.us += us;
    fact(name + call, us, "us");
  };
  time("create", [&] {
    for (MemoryHandle& handle : handles) handle = device.create(batch.handle_bytes).value();
  });
  const auto map_at = [&](Address range) {
    for (int i = 0; i < batch.handles; ++i) {
      device.map(at(range, i), batch.handle_bytes, handles[static_cast<std::size_t>(i)]);
    }
  };
  time("map", [&] { map_at(first); });
  time("set_access", [&] { device.set_access(first, bytes, {}); });
  time("map at a second address", [&] { map_at(second); });
  time("set_access at a second address", [&] { device.set_access(second, bytes, {}); });
  time("unmap", [&] { device.unmap(first, bytes); });
  sum.kernel_runs = busy && busy->is_busy();
  device.unmap(second, bytes);
  time("release", [&] {
    for (const MemoryHandle handle : handles) device.release(handle);
  });
  device.unreserve(first, bytes);
  device.unreserve(second, bytes);
  if (busy) busy->synchronize();
  return sum;
}

// Calls that wait end with the kernel, and took most of its time longer than without it.
bool waited(const BatchTime& idle, const BatchTime& busy) {
  return !busy.kernel_runs && busy.us > idle.us + std::chrono::duration<double, std::micro>(kBusyTime).count() / 2;
}

void measure_batches(const Effort& effort) {
  const auto device = cuda_devices().at(0);
  if (!device->properties().virtual_memory) return not_applicable("batches", "the GPU has no virtual memory");
  const OwnStream stream;
  int batches = 0;
  int waits = 0;
  for (const std::size_t handle_bytes : {2 * kMiB, 8 * kMiB, 32 * kMiB}) {
    for (const int handles : {1, 16, 128}) {
      if (effort.is_quick && handles > 16) continue;
      const BatchTime idle = measure_batch(*device, {handle_bytes, handles}, nullptr);
      waits += waited(idle, measure_batch(*device, {handle_bytes, handles}, &stream));
      ++batches;
    }
  }
  check("batches", waits == 0,
        std::to_string(waits) + " of " + std::to_string(batches) + " batches waited for a kernel");
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv, {{"idle", measure_idle}, {"busy", measure_busy}, {"batches", measure_batches}});
}
