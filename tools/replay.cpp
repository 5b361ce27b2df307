#include "tools/replay.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cachalot/options.h"
#include "policy/torch_policy.h"
#include "tools/steps_writer.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kDevicePageBytes = 2 * kMiB;  // physical memory comes in these
constexpr std::size_t kLargestDevice = std::size_t{1} << 50;
constexpr std::size_t kEventsPerReport = 4096;  // between two calls of ReplayOptions::progress

std::shared_ptr<SimulatedDevice> make_device(std::size_t bytes) {
  CACHALOT_REQUIRE(bytes >= kSmallBuffer, "a device of {} bytes is smaller than one segment ({} bytes)", bytes,
                   kSmallBuffer);
  CACHALOT_REQUIRE(bytes <= kLargestDevice, "a device of {} bytes is larger than 1 PiB", bytes);
  SimulatedDevice::Config config;
  config.memory_bytes = bytes;
  return std::make_shared<SimulatedDevice>(config);
}

// Counts the parts of a whole as they are done and reports now and then.
class Progress {
 public:
  Progress(const std::function<void(double)>& report, std::size_t parts) : report_(report), parts_(parts) {}
  void done(std::size_t parts) {
    done_ += parts;
    if (report_) report_(static_cast<double>(std::min(done_, parts_)) / static_cast<double>(parts_));
  }

 private:
  const std::function<void(double)>& report_;
  std::size_t parts_;
  std::size_t done_ = 0;
};

std::array<CallCount, 11> count_calls(const SimulatedDevice& device) {
  const auto count = [&](DeviceCall call) { return device.count(call); };
  return {{{"malloc", count(DeviceCall::malloc)},
           {"free", count(DeviceCall::free)},
           {"create", count(DeviceCall::create)},
           {"release", count(DeviceCall::release)},
           {"map", count(DeviceCall::map)},
           {"unmap", count(DeviceCall::unmap)},
           {"set_access", count(DeviceCall::set_access)},
           {"event_record", count(DeviceCall::event_record)},
           {"event_query", count(DeviceCall::event_query)},
           {"stream_wait", count(DeviceCall::stream_wait)},
           {"synchronize", count(DeviceCall::synchronize) + count(DeviceCall::event_synchronize)}}};
}

std::size_t bytes_of(const Stat& stat) { return static_cast<std::size_t>(stat.peak); }

// The replay all figures but the times come from. Returns the event that first reached the peak of reserved bytes.
std::size_t measure(const Trace& trace, const ReplayOptions& options, ReplayResult& result, Progress& progress) {
  ReplayWorld world(trace, options);
  std::optional<StepsWriter> steps;
  if (!options.steps_path.empty()) steps.emplace(options.steps_path, world.allocator());

  std::size_t peak_reserved = 0;
  std::size_t peak_event = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    const bool served = world.play(event);
    if (!served) {
      if (result.ooms++ == 0) result.first_oom_event = i;
    }
    const std::size_t reserved = world.allocator().memory_reserved();
    if (reserved > peak_reserved) {
      peak_reserved = reserved;
      peak_event = i;
    }
    if (steps && event.is_free()) steps->freed(i);
    if (steps && !event.is_free() && served) steps->allocated(i, world.pointer(event.slot));
    if (steps && !served) steps->out_of_memory(i);
    if (i % kEventsPerReport == kEventsPerReport - 1) progress.done(kEventsPerReport);
  }
  progress.done(trace.events.size() % kEventsPerReport);
  if (steps) steps->finish();

  const DeviceStats stats = world.allocator().memory_stats();
  result.peak_requested_bytes = bytes_of(stats.requested_bytes.all);
  result.peak_allocated_bytes = bytes_of(stats.allocated_bytes.all);
  result.peak_reserved_bytes = bytes_of(stats.reserved_bytes.all);
  if (result.peak_requested_bytes > 0) {
    result.ratio = static_cast<double>(result.peak_reserved_bytes) / static_cast<double>(result.peak_requested_bytes);
  }
  result.retries = static_cast<std::uint64_t>(stats.num_alloc_retries);
  result.device_calls = count_calls(world.device());
  result.driver_us = world.device().driver_us();
  return peak_event;
}

// Fragmentation after `event`. A replay is deterministic, so it is looked at once instead of at every new peak.
void measure_fragmentation(const Trace& trace, const ReplayOptions& options, std::size_t event, ReplayResult& result) {
  ReplayWorld world(trace, options);
  for (std::size_t i = 0; i <= event; ++i) world.play(trace.events[i]);
  const Fragmentation fragmentation = world.allocator().fragmentation();
  result.internal_fragmentation = fragmentation.internal;
  result.external_fragmentation = fragmentation.external;
}

// Says after each try that a part of the work is done.
bool try_device(const Trace& trace, const ReplayOptions& options, std::size_t bytes,
                const std::function<void()>& after_try) {
  const bool result = completes(trace, options, bytes);
  if (after_try) after_try();
  return result;
}

}  // namespace

ReplayWorld::ReplayWorld(const Trace& trace, const ReplayOptions& options)
    : ReplayWorld(trace, options, options.device_bytes) {}

ReplayWorld::ReplayWorld(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes)
    : streams_(trace.streams),
      device_(make_device(device_bytes)),
      allocator_({device_}, parse_options(options.config)),
      pointers_(trace.slots) {
  if (options.memory_fraction) allocator_.set_memory_fraction(*options.memory_fraction);
}

void ReplayWorld::free_all() {
  for (void*& pointer : pointers_) allocator_.deallocate(std::exchange(pointer, nullptr));
}

ReplayResult replay(const Trace& trace, const ReplayOptions& options) {
  const std::size_t events = trace.events.size();
  // Two measuring passes, the timed ones, and about as many as a bisection takes.
  const std::size_t passes = 2 + static_cast<std::size_t>(options.repeat) + (options.find_min_device ? 12 : 0);
  Progress progress(options.progress, passes * events);

  ReplayResult result;
  result.trace = trace.path;
  result.events = events;
  const std::size_t peak_event = measure(trace, options, result, progress);
  measure_fragmentation(trace, options, peak_event, result);
  progress.done(events);
  const std::int64_t ns = time_best_pass(trace, options, options.repeat, [&](int) { progress.done(events); });
  result.ns_per_event = static_cast<double>(ns) / static_cast<double>(events);
  if (options.find_min_device) {
    result.min_device_bytes = find_min_device(trace, options, [&] { progress.done(events); });
  }
  return result;
}

std::int64_t time_best_pass(const Trace& trace, const ReplayOptions& options, int passes,
                            const std::function<void(int)>& after_pass) {
  using Clock = std::chrono::steady_clock;
  std::thread([] {}).join();
  ReplayWorld world(trace, options);
  auto best = Clock::duration::max();
  for (int pass = 1; pass <= passes; ++pass) {
    const auto start = Clock::now();
    for (const TraceEvent& event : trace.events) world.play(event);
    best = std::min(best, Clock::now() - start);
    world.free_all();
    if (after_pass) after_pass(pass);
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(best).count();
}

bool completes(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes) {
  ReplayWorld world(trace, options, device_bytes);
  return std::all_of(trace.events.begin(), trace.events.end(),
                     [&](const TraceEvent& event) { return world.play(event); });
}

std::optional<std::size_t> find_min_device(const Trace& trace, const ReplayOptions& options,
                                           const std::function<void()>& after_try) {
  // One byte less than what lives at once is too small; from there, double until it is enough.
  std::size_t too_small = round_down(std::max<std::size_t>(peak_live_bytes(trace), 1) - 1, kDevicePageBytes);
  std::size_t enough = too_small + kDevicePageBytes;
  while (!try_device(trace, options, enough, after_try)) {
    too_small = std::exchange(enough, 2 * enough);
    if (enough > kLargestDevice) return std::nullopt;
  }
  while (enough - too_small > std::max(enough / 1000, kDevicePageBytes)) {
    const std::size_t middle = round_down(too_small + (enough - too_small) / 2, kDevicePageBytes);
    (try_device(trace, options, middle, after_try) ? enough : too_small) = middle;
  }
  return enough;
}

}  // namespace cachalot::tools
