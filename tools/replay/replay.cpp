#include "tools/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <span>
#include <thread>

#include "base/check.h"
#include "cachalot/guard.h"
#include "cachalot/options.h"
#include "device/addresses.h"
#include "policy/torch_policy.h"
#include "tools/base/output_file.h"
#include "tools/replay/expandable_segments.h"

namespace cachalot::tools {
namespace {

const std::string& of_segments(const std::string& path, const CachingAllocator& allocator) {
  CACHALOT_REQUIRE(
      !uses_pages(allocator.options()),
      "--steps {}: steps number segments, and the page heap (heap:pages, expandable_segments:True) has none", path);
  return path;
}

// Writes what the allocator decided at every event of a replay, in the format of data/golden:
//
//   <event> <segment> <offset> <reserved> <allocated> <active> <inactive_split>    an allocation
//   <event> oom                                                                    one that failed
//   <event> - - <reserved> <allocated> <active> <inactive_split>                   a free
//
// Segments are numbered in the order of their creation, from 0; the figures are bytes after the event. An allocation of
// 0 bytes has no segment and is written as a free is. The page heap has no segments at all: it is refused.
//
// The file appears in finish() (output_file.h).
class StepsWriter {
 public:
  // Throws InvalidArgument for an allocator on the page heap, before there is any file, and when the file cannot be
  // written. From here on follows the segments of `allocator`, which must be fresh and must not be used any more once
  // the writer is gone.
  StepsWriter(const std::string& path, CachingAllocator& allocator)
      : allocator_(allocator), file_(of_segments(path, allocator), "--steps") {
    allocator.add_change_tracker([this](const Change& change) { follow(change); });
  }

  StepsWriter(const StepsWriter&) = delete;
  StepsWriter& operator=(const StepsWriter&) = delete;

  void allocated(std::size_t event, const void* pointer) {
    if (pointer == nullptr) return freed(event);
    const Address address = as_address(pointer);
    const auto next = ordinals_.upper_bound(address);
    CACHALOT_ASSERT(next != ordinals_.begin());  // follow() has seen every segment
    const auto [base, ordinal] = *std::prev(next);
    file_.print("{} {} {}", event, ordinal, address - base);
    print_figures();
  }

  void out_of_memory(std::size_t event) { file_.print("{} oom\n", event); }

  void freed(std::size_t event) {
    file_.print("{} - -", event);
    print_figures();
  }

  void finish() { file_.finish(); }

 private:
  void follow(const Change& change) {
    if (change.action == Change::Action::segment_alloc) ordinals_[change.address] = segments_created_++;
    if (change.action == Change::Action::segment_free) ordinals_.erase(change.address);
  }

  void print_figures() {
    const DeviceStats stats = allocator_.memory_stats();
    file_.print(" {} {} {} {}\n", stats.reserved_bytes.all.current, stats.allocated_bytes.all.current,
                stats.active_bytes.all.current, stats.inactive_split_bytes.all.current);
  }

  CachingAllocator& allocator_;
  std::map<Address, std::size_t> ordinals_;  // of the segments held, by base address
  std::size_t segments_created_ = 0;
  OutputFile file_;
};

constexpr std::size_t kDevicePageBytes = 2 * kMiB;  // physical memory comes in these
constexpr std::size_t kLargestDevice = std::size_t{1} << 50;
constexpr std::size_t kEventsPerReport = 4096;  // between two calls of ReplayOptions::progress
constexpr std::int64_t kHostNsPerEvent = 1000;

std::shared_ptr<SimulatedDevice> make_device(std::size_t bytes, const ReplayOptions& options) {
  CACHALOT_REQUIRE(bytes >= kSmallBuffer, "a device of {} bytes is smaller than one segment ({} bytes)", bytes,
                   kSmallBuffer);
  CACHALOT_REQUIRE(bytes <= kLargestDevice, "a device of {} bytes is larger than 1 PiB", bytes);
  SimulatedDevice::Config config;
  config.memory_bytes = bytes;
  config.check_hazards = options.check_hazards;
  config.latency.set_access_us_per_mapping = options.access_us_per_mapping;
  config.mapping_waits = options.mapping_waits;
  if (!options.uses_host) config.managed_host_bytes = 0;
  return std::make_shared<SimulatedDevice>(config);
}

// The longest keeps the clock far from its end, 292 years, whatever the trace.
std::int64_t work_ns(double work_us) {
  constexpr double kLongestUs = 1e6;
  CACHALOT_REQUIRE(work_us >= 0 && work_us <= kLongestUs, "--work-us {}: the work must take 0 to {} microseconds",
                   work_us, kLongestUs);
  return std::llround(work_us * 1000);
}

double ns_per_byte(double gb_per_s) {
  constexpr double kSlowest = 0.001;  // a block of a TiB takes two weeks
  CACHALOT_REQUIRE(gb_per_s == 0 || (gb_per_s >= kSlowest && std::isfinite(gb_per_s)),
                   "--work-gb-per-s {}: it must be 0 or at least {}", gb_per_s, kSlowest);
  return gb_per_s == 0 ? 0 : 1 / gb_per_s;
}

void limit_memory(CachingAllocator& allocator, double fraction) {
  try {
    allocator.set_memory_fraction(fraction);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--memory-fraction: {}", error.what()));
  }
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

constexpr std::array kMemoryCalls = {DeviceCall::malloc, DeviceCall::free,  DeviceCall::create,    DeviceCall::release,
                                     DeviceCall::map,    DeviceCall::unmap, DeviceCall::set_access};

// Returns how many calls have taken, given back, mapped or unmapped memory of the device.
std::uint64_t memory_calls(const SimulatedDevice& device) {
  std::uint64_t calls = 0;
  for (const DeviceCall call : kMemoryCalls) calls += device.count(call);
  return calls;
}

std::array<CallCount, 12> count_calls(const SimulatedDevice& device) {
  constexpr std::array kOtherCalls = {DeviceCall::event_record, DeviceCall::event_query, DeviceCall::event_synchronize,
                                      DeviceCall::stream_wait, DeviceCall::synchronize};
  const auto counted = [&](DeviceCall call) { return CallCount{to_string(call), device.count(call)}; };
  std::array<CallCount, kMemoryCalls.size() + kOtherCalls.size()> counts;
  const auto others = std::ranges::transform(kMemoryCalls, counts.begin(), counted).out;
  std::ranges::transform(kOtherCalls, others, counted);
  return counts;
}

std::size_t bytes_of(const Stat& stat) { return static_cast<std::size_t>(stat.peak); }

double ratio_of_peaks(const DeviceStats& stats) {
  const auto requested = static_cast<double>(stats.requested_bytes.all.peak);
  return requested == 0 ? 0 : static_cast<double>(stats.reserved_bytes.all.peak) / requested;
}

void fill_in(ReplayResult& result, const DeviceStats& stats) {
  result.peak_requested_bytes = bytes_of(stats.requested_bytes.all);
  result.peak_allocated_bytes = bytes_of(stats.allocated_bytes.all);
  result.peak_reserved_bytes = bytes_of(stats.reserved_bytes.all);
  result.ratio = ratio_of_peaks(stats);
  result.retries = static_cast<std::uint64_t>(stats.num_alloc_retries);
}

void fill_in(ReplayResult& result, const SimulatedDevice& device) {
  result.peak_driver_bytes = device.peak_used_bytes();
  result.device_calls = count_calls(device);
  result.device_wide_synchronizations = device.count(DeviceCall::synchronize);
  result.stream_waits = device.count(DeviceCall::stream_wait);
  result.memory_calls = memory_calls(device);
  result.driver_us = device.driver_us();
}

// Counts the allocations of a trace's later half, and those of them that made a memory call.
class LateAllocations {
 public:
  LateAllocations(const Trace& trace, ReplayWorld& world) : world_(world) { early_ = trace.allocation_count / 2; }

  // To be called after each event. Looks at the device only where the next event may be a late allocation.
  void played(const TraceEvent& event) {
    const bool is_late = !event.is_free() && seen_ >= early_;
    if (!event.is_free()) ++seen_;
    if (seen_ < early_) return;
    const std::uint64_t calls = memory_calls(world_.device());
    if (is_late && calls > calls_) ++made_calls_;
    calls_ = calls;
  }

  std::size_t count() const { return seen_ - early_; }
  std::size_t made_calls() const { return made_calls_; }

 private:
  ReplayWorld& world_;
  std::size_t early_ = 0;  // allocations that are not late
  std::size_t seen_ = 0;
  std::size_t made_calls_ = 0;
  std::uint64_t calls_ = 0;  // memory calls until now
};

// After an event of an iteration, both counted from 0.
struct PlayedMoment {
  int iteration = 0;
  std::size_t event = 0;
};

// The replay all figures but the times come from.
class Measurement {
 public:
  Measurement(const Trace& trace, const ReplayOptions& options, ReplayResult& result)
      : trace_(trace), result_(result), world_(trace, options), late_(trace, world_) {
    if (!options.steps_path.empty()) steps_.emplace(options.steps_path, world_.allocator());
  }

  void play_iteration(Progress& progress) {
    const std::uint64_t calls_before = memory_calls(world_.device());
    const double us_before = world_.device().driver_us();
    for_each_part(trace_, [&](std::span<const TraceEvent> events, std::size_t first) {
      for (std::size_t i = 0; i < events.size(); ++i) {
        const std::size_t number = first + i;
        look_at(events[i], number, world_.play_with_work(events[i], number));
        if (number % kEventsPerReport == kEventsPerReport - 1) progress.done(kEventsPerReport);
      }
      return true;
    });
    progress.done(trace_.event_count % kEventsPerReport);
    if (steps_ && iteration_ == 0) steps_->finish();
    result_.live_mappings = world_.device().live_mappings();
    world_.end_iteration();
    result_.memory_calls_per_iteration.push_back(memory_calls(world_.device()) - calls_before);
    result_.driver_us_per_iteration.push_back(world_.device().driver_us() - us_before);
    result_.ratio_per_iteration.push_back(ratio_of_peaks(world_.allocator().memory_stats()));
    ++iteration_;
  }

  // Returns the moment when reserved bytes first reached their peak.
  PlayedMoment finish() {
    fill_in(result_, world_.allocator().memory_stats());
    fill_in(result_, world_.device());
    result_.late_allocations = late_.count();
    result_.late_driver_allocations = late_.made_calls();
    return peak_;
  }

 private:
  void look_at(const TraceEvent& event, std::size_t number, bool served) {
    if (!served && result_.ooms++ == 0) result_.first_oom_event = number;
    const std::size_t reserved = world_.allocator().memory_reserved();
    if (reserved > peak_reserved_) {
      peak_reserved_ = reserved;
      peak_ = {iteration_, number};
    }
    if (iteration_ > 0) return;
    late_.played(event);
    if (steps_) write_step(event, number, served);
  }

  void write_step(const TraceEvent& event, std::size_t number, bool served) {
    if (!served) return steps_->out_of_memory(number);
    if (event.is_free()) return steps_->freed(number);
    steps_->allocated(number, world_.pointer(event.slot));
  }

  const Trace& trace_;
  ReplayResult& result_;
  ReplayWorld world_;
  LateAllocations late_;
  std::optional<StepsWriter> steps_;
  int iteration_ = 0;
  std::size_t peak_reserved_ = 0;
  PlayedMoment peak_;
};

PlayedMoment measure(const Trace& trace, const ReplayOptions& options, ReplayResult& result, Progress& progress) {
  Measurement measurement(trace, options, result);
  for (int i = 0; i < options.iterations; ++i) measurement.play_iteration(progress);
  return measurement.finish();
}

// The events before number `end`; false: an allocation failed, and `until_failure` ends the play with the first that does.
bool play_events(ReplayWorld& world, const Trace& trace, std::size_t end, bool until_failure) {
  bool all_served = true;
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t first) {
    for (std::size_t i = 0; i < events.size() && first + i < end; ++i) {
      all_served = world.play_with_work(events[i], first + i) && all_served;
      if (until_failure && !all_served) return false;
    }
    return first + events.size() < end;
  });
  return all_served;
}

void play_until(ReplayWorld& world, const Trace& trace, PlayedMoment moment) {
  for (int i = 0; i < moment.iteration; ++i) {
    play_events(world, trace, trace.event_count, /*until_failure=*/false);
    world.end_iteration();
  }
  play_events(world, trace, moment.event + 1, /*until_failure=*/false);
}

// A replay is deterministic, so fragmentation is looked at once instead of at every new peak.
void measure_fragmentation(const Trace& trace, const ReplayOptions& options, PlayedMoment moment,
                           ReplayResult& result) {
  ReplayWorld world(trace, options);
  play_until(world, trace, moment);
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

void LaunchQueue::add(std::int64_t end_ns) {
  if (ends_ns_.size() < kMostPending) return ends_ns_.push_back(end_ns);
  ends_ns_[oldest_] = end_ns;
  oldest_ = (oldest_ + 1) % kMostPending;
}

namespace {

// A trace's streams are PyTorch's.
Options options_of(const std::string& config) {
  Options options;
  options.immortal_streams = true;
  return parse_options(config, options);
}

// Returns whether the heap takes the decisions of a program with PyTorch's default settings.
bool decides_as_recorded(const Options& policy) {
  const auto rounds = [](std::size_t divisions) { return divisions > 1; };
  return policy.heap == HeapKind::segments && policy.max_split_size == Options::kUnlimited &&
         policy.large_segment_size == kLargeBuffer && policy.garbage_collection_threshold == 0 &&
         std::ranges::none_of(policy.roundup_power2_divisions, rounds);
}

}  // namespace

ReplayWorld::ReplayWorld(const Trace& trace, const ReplayOptions& options)
    : ReplayWorld(trace, options, options.device_bytes) {}

ReplayWorld::ReplayWorld(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes)
    : trace_(trace),
      streams_(trace.streams),
      device_(make_device(device_bytes, options)),
      allocator_({device_}, options_of(options.config), guard_factory()),
      pointers_(trace.slots),
      allocated_by_(trace.slots, kNoEvent),
      kept_events_(trace.slots, kNoEvent),
      work_ns_(work_ns(options.work_us)),
      work_ns_per_byte_(ns_per_byte(options.work_gb_per_s)),
      wait_every_(options.wait_every),
      check_hazards_(options.check_hazards),
      queues_(trace.streams.size()) {
  if (options.memory_fraction) limit_memory(allocator_, *options.memory_fraction);
  redirect_pools();
  const Options policy = options_of(options.config);
  if (!decides_as_recorded(policy) || trace.segments.empty()) return;
  recorded_policy_ = policy;
  std::vector<AddressRange> ranges;
  for (const RecordedSegment& one : trace.segments) {
    if (one.range.bytes != 0) ranges.push_back(one.range);
  }
  device_->plan_addresses(ranges);
}

// Allocations of a pool's streams get memory of that pool alone, and the cache of pools is never given back.
void ReplayWorld::redirect_pools() {
  std::map<std::uint16_t, std::set<Stream>> pools;
  for (std::size_t i = 0; i < trace_.pools.size(); ++i) {
    if (trace_.pools[i] != 0) pools[trace_.pools[i]].insert(streams_[i]);
  }
  for (const auto& [pool, streams] : pools) {
    const auto is_of_pool = [of_pool = streams](Stream stream) { return of_pool.contains(stream); };
    allocator_.begin_allocate_to_pool(/*device=*/0, PoolId{0, pool}, is_of_pool, RedirectFor::requests);
  }
}

ReplayWorld::~ReplayWorld() {
  kept_.insert(kept_.end(), pointers_.begin(), pointers_.end());
  for (const void* pointer : kept_) {
    try {
      device_->given_back(as_address(pointer));
    } catch (const HazardError&) {  // its handout was the hazard, and that was told
    }
  }
  device_->synchronize();
}

bool ReplayWorld::play_with_work(const TraceEvent& event, std::size_t number) {
  if (is_kept(event, number)) return true;
  device_->advance(kHostNsPerEvent);
  if (recorded_policy_) follow_recording(event, number);
  try {
    if (event.empties_cache()) {
      allocator_.empty_cache();
      return true;
    }
    if (event.is_free()) {
      give_back(event.slot);
      return true;
    }
    allocated_by_[event.slot] = number;
    const bool served = play(event);
    if (served) use(event);
    return served;
  } catch (const HazardError& error) {
    throw HazardError(fmt::format("{}: event {} of iteration {}: {}", trace_.path, number, iteration_, error.what()));
  }
}

// PyTorch's decisions depend on the memory that it has: where it gave its cache back for the request, or took a segment of another
// size than the policy would, this heap does so.
void ReplayWorld::follow_recording(const TraceEvent& event, std::size_t number) {
  for (; next_recorded_ < trace_.segments.size() && trace_.segments[next_recorded_].event <= number; ++next_recorded_) {
    const RecordedSegment& one = trace_.segments[next_recorded_];
    if (one.is_after_release) allocator_.empty_cache();
    const std::size_t bytes = one.range.bytes;
    const std::size_t usual = recorded_policy_->large_segment_size;
    if (bytes == 0 || bytes == segment_size(round_size(event.bytes, *recorded_policy_), usual) ||
        bytes != segment_size(bytes, usual))
      continue;
    try {
      allocator_.deallocate(allocator_.allocate(bytes, /*device=*/0, streams_[event.stream]));
    } catch (const OutOfMemory&) {  // nor will there be memory for the request itself
    }
  }
}

void ReplayWorld::end_iteration() {
  for (std::size_t slot = 0; slot < pointers_.size(); ++slot) {
    if (pointers_[slot] == nullptr) continue;
    kept_.push_back(std::exchange(pointers_[slot], nullptr));
    kept_events_[slot] = allocated_by_[slot];
  }
  ++iteration_;
  next_recorded_ = 0;
}

void ReplayWorld::free_all() {
  try {
    for (std::uint32_t slot = 0; slot < pointers_.size(); ++slot) give_back(slot);
  } catch (const HazardError& error) {
    throw HazardError(
        fmt::format("{}: after the last event of iteration {}: {}", trace_.path, iteration_, error.what()));
  }
  ++iteration_;
  next_recorded_ = 0;
}

void ReplayWorld::give_back(std::uint32_t slot) {
  device_->given_back(as_address(pointers_[slot]));
  allocator_.deallocate(std::exchange(pointers_[slot], nullptr));
}

// The block that was just allocated is handed out and gets its work.
void ReplayWorld::use(const TraceEvent& event) {
  const Address address = as_address(pointers_[event.slot]);
  if (address == 0) return;  // an allocation of 0 bytes
  const Stream stream = streams_[event.stream];
  device_->handed_out(address, event.bytes, stream);
  if (work_ns_ == 0 && work_ns_per_byte_ == 0 && !check_hazards_) return;  // never pending, and not read
  LaunchQueue& queue = queues_[event.stream];
  device_->advance_to(queue.has_room_ns());
  const std::int64_t fill_ns = std::llround(work_ns_per_byte_ * static_cast<double>(event.bytes));
  queue.add(device_->launch(stream, work_ns_ + fill_ns, {{address, event.bytes}}));
  if (wait_every_ == 0 || ++uses_ < wait_every_) return;
  device_->advance_to(device_->stream_ready_ns(stream));
  uses_ = 0;
}

ReplayResult replay(const Trace& trace, const ReplayOptions& options) {
  const std::size_t events = trace.event_count;
  // The measuring iterations and those up to the peak once more, the timed passes, and about as many as a bisection
  // takes.
  const auto iterations = static_cast<std::size_t>(options.iterations);
  const std::size_t passes =
      2 * iterations + static_cast<std::size_t>(options.repeat) + (options.find_min_device ? 12 : 0);
  Progress progress(options.progress, passes * events);

  ReplayResult result;
  result.trace = trace.path;
  result.events = events;
  result.failed_requests = trace.failed_requests;
  result.work_us = options.work_us;
  result.check_hazards = options.check_hazards;
  if (options.models_expandable_segments) {
    result.expandable_us = driver_us_of_growth(play_on_expandable_segments(trace, options.device_bytes));
  }
  const PlayedMoment peak = measure(trace, options, result, progress);
  if (options.measure_fragmentation) measure_fragmentation(trace, options, peak, result);
  progress.done(iterations * events);
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
  ReplayOptions unchecked = options;
  unchecked.check_hazards = false;
  ReplayWorld world(trace, unchecked);
  auto best = Clock::duration::max();
  for (int pass = 1; pass <= passes; ++pass) {
    auto played = Clock::duration::zero();
    for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t) {
      const auto start = Clock::now();
      for (const TraceEvent& event : events) world.play(event);
      played += Clock::now() - start;
      return true;
    });
    best = std::min(best, played);
    world.free_all();
    if (after_pass) after_pass(pass);
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(best).count();
}

bool completes(const Trace& trace, const ReplayOptions& options, std::size_t device_bytes) {
  ReplayOptions on_device = options;
  on_device.uses_host = false;
  ReplayWorld world(trace, on_device, device_bytes);
  return play_events(world, trace, trace.event_count, /*until_failure=*/true);
}

std::optional<std::size_t> find_min_device(const Trace& trace, const ReplayOptions& options,
                                           const std::function<void()>& after_try) {
  const std::size_t peak = peak_live_bytes(trace);
  if (peak > kLargestDevice) return std::nullopt;
  // One byte less than what lives at once is too small; from there, double until it is enough.
  std::size_t too_small = round_down(std::max<std::size_t>(peak, 1) - 1, kDevicePageBytes);
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
