#include "tests/programs/player.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/bytes.h"
#include "tests/reference/accounting.h"

namespace cachalot {
namespace {

using Kind = Operation::Kind;

constexpr const char* kTag = "sleepers";
constexpr int kInjectedCode = 999;

PoolId memory_pool(std::uint64_t name) { return {0, name}; }
PoolId graph_pool(std::uint64_t name) { return {name, 0}; }

std::vector<std::shared_ptr<SimulatedDevice>> make_devices(const Program& program, const LatencyModel& latency) {
  std::vector<std::shared_ptr<SimulatedDevice>> devices;
  for (const std::size_t mib : program.device_mib) {
    SimulatedDevice::Config config;
    config.index = static_cast<int>(devices.size());
    config.memory_bytes = mib * kMiB;
    config.managed_host_bytes = config.memory_bytes;
    config.latency = latency;
    config.check_hazards = true;
    devices.push_back(std::make_shared<SimulatedDevice>(config));
  }
  return devices;
}

std::vector<std::shared_ptr<Device>> wrapped(const std::vector<std::shared_ptr<SimulatedDevice>>& devices,
                                             const Player::Config& config) {
  if (!config.wrap) return {devices.begin(), devices.end()};
  std::vector<std::shared_ptr<Device>> all;
  for (const auto& device : devices) all.push_back(config.wrap(device));
  return all;
}

}  // namespace

Player::Player(const Program& program, const Config& config)
    : config_(config),
      devices_(make_devices(program, config.latency)),
      allocator_(std::make_unique<CachingAllocator>(wrapped(devices_, config), parse_options(program.options))),
      may_sleep_(uses_pages(allocator_->options())),
      caches_(allocator_->options().thread_cache.value_or(may_sleep_)) {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    for (std::uint64_t stream = 1; stream < kProgramStreams; ++stream) {
      places_[i].streams[stream] = devices_[i]->new_stream();
    }
  }
  allocator_->add_free_memory_callback([this] { return free_donations(); });
}

// After trouble there may be live blocks, whose memory goes with the allocator.
Player::~Player() {
  for (const auto& [name, live] : live_) {
    if (!live.given_back) simulated(live.device).given_back(range(live).address);
  }
}

std::string Player::step(const Operation& operation) {
  try {
    apply(operation);
  } catch (const std::exception& error) {
    trouble(fmt::format("threw: {}", error.what()));
  }
  check_counts();
  ++steps_;
  if (config_.validate_every != 0 && steps_ % config_.validate_every == 0) check_tables();
  return trouble_;
}

std::string Player::finish() {
  for (const auto& device : devices_) device->set_faults({});
  try {
    for (int i = 0; i < allocator_->device_count(); ++i) {
      end_capture(i);
      allocator_->set_memory_fraction(1, i);
    }
    free_all([](const Live& live) { return !live.tagged; });  // there may have been no room to wake
    release_pools();
    wake();
    if (asleep_) trouble("a tag does not wake although nothing fails and nothing else is allocated");
    free_all([](const Live&) { return true; });
    allocator_->empty_cache();
    // heap:async gives memory back in stream order.
    for (int i = 0; i < allocator_->device_count(); ++i) devices_[static_cast<std::size_t>(i)]->synchronize();
  } catch (const std::exception& error) {
    trouble(fmt::format("at the end, threw: {}", error.what()));
  }
  for (int i = 0; i < allocator_->device_count(); ++i) {
    if (allocator_->memory_allocated(i) != 0) trouble("at the end, memory is allocated");
    if (allocator_->memory_reserved(i) != 0) trouble("at the end, memory is reserved");
    if (device(i).used_bytes() != 0 || device(i).managed_host_bytes() != 0)
      trouble("at the end, the device is not empty");
  }
  if (const std::string broken = allocator_->validate(); !broken.empty()) trouble("at the end, validate: " + broken);
  return trouble_;
}

std::uint64_t Player::faults_injected() const {
  std::uint64_t sum = 0;
  for (const auto& device : devices_) sum += device->faults_injected();
  return sum;
}

void Player::trouble(std::string text) {
  if (trouble_.empty()) trouble_ = std::move(text);
}

void Player::tell(bool calls) const {
  if (config_.around) config_.around(calls);
}

bool Player::attempt(const std::function<void()>& action, Mistakes mistakes) {
  const auto call = [&] {
    tell(true);
    try {
      action();
    } catch (...) {
      tell(false);
      throw;
    }
    tell(false);
  };
  return attempt_on_device(call, mistakes);
}

bool Player::attempt_on_device(const std::function<void()>& action, Mistakes mistakes) {
  const std::uint64_t faults = faults_injected();
  try {
    action();
    return true;
  } catch (const OutOfMemory&) {
    ++times_out_of_memory_;
  } catch (const std::bad_alloc&) {
    if (!config_.around) trouble("host memory ran out");
  } catch (const CudaError& error) {
    if (faults_injected() == faults) trouble(fmt::format("without a fault: {}", error.what()));
  } catch (const InvalidArgument& error) {
    if (mistakes == Mistakes::forbidden) trouble(fmt::format("refused: {}", error.what()));
  }
  return false;
}

void Player::apply(const Operation& operation) {
  const int index = operation.device;
  const auto found = live_.find(operation.name);
  switch (operation.kind) {
    case Kind::allocate:
      return allocate(operation, false);
    case Kind::allocate_tagged:
      return allocate(operation, may_sleep_ && !asleep_ && !captures());
    case Kind::allocate_contiguous:
      return allocate(operation, false, {.contiguous = true});
    case Kind::allocate_aligned:
      return allocate(operation, false, {.alignment = alignment_of(operation.name)});
    case Kind::allocate_placed:
      return allocate(operation, false, {.contiguous = true, .alignment = alignment_of(operation.name)});
    case Kind::allocate_plain:
      return allocate(operation, false, {.plain = true});
    case Kind::switch_segments:
      if (uses_pages(allocator_->options()))
        attempt([&] {
          allocator_->configure(operation.amount == 0 ? "expandable_segments:False" : "expandable_segments:True");
        });
      return;
    case Kind::deallocate:
      return deallocate(operation.name);
    case Kind::deallocate_sized:
      return deallocate(operation.name, &operation);
    case Kind::record_stream:
      if (found != live_.end()) announce(found->second, operation.stream);
      return;
    case Kind::use:
      if (found != live_.end()) use(found->second, operation.stream, operation.amount);
      return;
    case Kind::launch:
      simulated(index).launch(stream_of(index, operation.stream), static_cast<std::int64_t>(operation.amount));
      return;
    case Kind::advance:
      return simulated(index).advance(static_cast<std::int64_t>(operation.amount));
    case Kind::wait:
      order(index, operation.amount % kProgramStreams, operation.stream);
      return;
    case Kind::synchronize:
      if (!captures()) simulated(index).stream_synchronize(stream_of(index, operation.stream));
      return;
    case Kind::empty_cache:
      attempt([&] { allocator_->empty_cache(index); });
      return;
    case Kind::empty_all_caches:
      attempt([&] { allocator_->empty_cache(); });
      return;
    case Kind::set_memory_fraction:
      attempt([&] { allocator_->set_memory_fraction(static_cast<double>(operation.amount) / 1000, index); });
      return;
    case Kind::configure:
      attempt([&] { allocator_->configure(kProgramOptions[operation.amount % kProgramOptions.size()]); });
      return;
    case Kind::reset_peak:
      return allocator_->reset_peak_stats(index);
    case Kind::reset_accumulated:
      return allocator_->reset_accumulated_stats(index);
    case Kind::begin_capture:
      return begin_capture(index, graph_pool(operation.name), operation.stream);
    case Kind::end_capture:
      return end_capture(index);
    case Kind::donate:
      if (found != live_.end()) donated_.insert(operation.name);
      return;
    case Kind::sleep:
      return sleep(operation.amount != 0);
    case Kind::wake:
      return wake();
    case Kind::checkpoint:
      return checkpoint(index, graph_pool(operation.name));
    case Kind::restore:
      return restore(index, graph_pool(operation.name));
    case Kind::misuse:
      if (found != live_.end()) misuse(found->second, static_cast<Misuse>(operation.amount));
      return;
    case Kind::fail:
      return fail(operation);
    default:
      return apply_to_pool(operation);
  }
}

// ---- Memory

void Player::allocate(const Operation& operation, bool tagged, const AllocateOptions& options) {
  if (operation.amount == 0 || live_.count(operation.name) > 0) return;
  const int index = operation.device;
  const Stream stream = stream_of(index, operation.stream);
  Live live{.device = index, .bytes = operation.amount, .home = operation.stream, .tagged = tagged};
  live.used_on[operation.stream] = true;
  live.pool = pool_for(index, stream);
  if (tagged && !attempt([&] { allocator_->begin_tagged(kTag, index); })) return;
  const bool allocated = attempt([&] { live.ptr = allocator_->allocate(operation.amount, index, stream, options); });
  if (tagged) attempt([&] { allocator_->end_tagged(kTag, index); });
  if (!allocated) return;
  expect_place(live, options);
  simulated(index).handed_out(range(live).address, live.bytes, stream);
  Live& kept = live_.emplace(operation.name, live).first->second;
  use(kept, kept.home, 1000);
  if (tagged) mark(kept);
}

void Player::expect_place(const Live& live, const AllocateOptions& options) {
  if (range(live).address % options.alignment != 0) trouble("aligned memory begins elsewhere");
  if (options.contiguous && allocator_->handle_count(live.ptr) > 1)
    trouble("contiguous memory lies in several handles");
}

// Work of the program on its own stream, where another was not announced.
void Player::use(Live& live, std::uint64_t stream, std::uint64_t ns) {
  if (live.given_back) return;
  if (!live.used_on[stream]) stream = live.home;
  simulated(live.device).launch(stream_of(live.device, stream), static_cast<std::int64_t>(ns), {range(live)});
}

void Player::announce(Live& live, std::uint64_t stream) {
  if (live.given_back || captures()) return;
  if (stream != live.home && !order(live.device, live.home, stream)) return;
  if (!attempt([&] { allocator_->record_stream(live.ptr, stream_of(live.device, stream)); })) return;
  live.used_on[stream] = true;
  use(live, stream, 1000);
}

// Work queued on the later stream from here on comes after what the earlier one has queued.
bool Player::order(int device, std::uint64_t earlier, std::uint64_t later) {
  if (earlier == later || captures()) return false;
  SimulatedDevice& on = simulated(device);
  Event event = nullptr;
  if (!attempt_on_device([&] { event = on.event_create(); })) return false;
  const bool ordered = attempt_on_device([&] {
    on.event_record(event, stream_of(device, earlier));
    on.stream_wait(stream_of(device, later), event);
  });
  attempt_on_device([&] { on.event_destroy(event); });
  return ordered;
}

// A free that fails leaves the block live. It is not used any more, because the checker was told that it is given back.
void Player::deallocate(Name name, const Operation* sized) {
  const auto found = live_.find(name);
  if (found == live_.end()) return;
  Live& live = found->second;
  if (!live.given_back) simulated(live.device).given_back(range(live).address);
  live.given_back = true;
  const bool done = attempt([&] {
    if (sized == nullptr) return allocator_->deallocate(live.ptr);
    allocator_->deallocate(live.ptr, live.bytes, live.device, stream_of(live.device, sized->stream));
  });
  if (!done) return;
  donated_.erase(name);
  live_.erase(name);
}

void Player::release_pools() {
  for (int i = 0; i < allocator_->device_count(); ++i) {
    for (auto& [id, pool] : place(i).pools) {
      if (pool.redirects) allocator_->end_allocate_to_pool(i, id);
      pool.redirects = false;
      for (; pool.users > 0; --pool.users) allocator_->release_pool(i, id);
    }
  }
}

void Player::free_all(const std::function<bool(const Live&)>& which) {
  std::vector<Name> names;
  for (const auto& [name, live] : live_) {
    if (which(live)) names.push_back(name);
  }
  for (const Name name : names) deallocate(name);
}

bool Player::free_donations() {
  tell(false);  // the player's own
  const std::set<Name> names = std::exchange(donated_, {});
  for (const Name name : names) deallocate(name);
  return !names.empty();
}

// ---- Sleep

bool Player::has_tagged() const {
  return std::any_of(live_.begin(), live_.end(), [](const auto& each) { return each.second.tagged; });
}

// The program has done with all that sleeps, and may use it again when it wakes. A failure may leave a part asleep.
void Player::sleep(bool save) {
  if (asleep_ || captures() || !has_tagged()) return;
  for (auto& [name, live] : live_) {
    if (!live.tagged || live.given_back) continue;
    simulated(live.device).given_back(range(live).address);
    live.given_back = true;
  }
  asleep_ = true;
  saved_ = attempt([&] { allocator_->release_physical(kTag, save); }) && save;
}

void Player::wake() {
  if (!asleep_ || captures()) return;
  if (!attempt([&] { allocator_->restore_physical(kTag); })) return;
  for (const auto& device : devices_) {
    if (!attempt_on_device([&] { device->synchronize(); })) return;
  }
  asleep_ = false;
  ++times_woken_;
  for (auto& [name, live] : live_) {
    if (!live.tagged) continue;
    simulated(live.device).handed_out(range(live).address, live.bytes, stream_of(live.device, live.home));
    live.given_back = false;
    saved_ ? expect_mark(live) : mark(live);
  }
}

void Player::mark(Live& live) {
  const std::uint64_t mark = next_mark_++;
  const std::size_t bytes = std::min(live.bytes, sizeof(mark));
  live.mark.reset();
  if (attempt_on_device([&] { simulated(live.device).copy_from_host(range(live).address, &mark, bytes); }))
    live.mark = mark;
}

void Player::expect_mark(const Live& live) {
  if (!live.mark) return;
  std::uint64_t seen = 0;
  const std::size_t bytes = std::min(live.bytes, sizeof(seen));
  const bool read = attempt_on_device([&] { simulated(live.device).copy_to_host(&seen, range(live).address, bytes); });
  if (read && std::memcmp(&seen, &*live.mark, bytes) != 0) trouble("memory that was saved has another content");
}

// ---- Pools and captures

bool Player::captures() const {
  return std::any_of(places_.begin(), places_.end(), [](const Place& each) { return each.capture.has_value(); });
}

PoolId Player::pool_for(int device, Stream stream) const {
  const Place& here = places_[static_cast<std::size_t>(device)];
  if (here.capture && here.capture->stream == stream) return here.capture->pool;
  for (const auto& [id, pool] : here.pools) {
    if (pool.redirects) return id;
  }
  return {};
}

void Player::begin_capture(int device, PoolId pool, std::uint64_t stream) {
  Place& here = place(device);
  if (captures() || stream == 0) return;  // the legacy stream cannot be captured
  const Stream captured = here.streams[stream];
  const std::uint64_t id = simulated(device).begin_capture(captured);
  const bool begun = attempt([&] {
    allocator_->begin_allocate_to_pool(
        device, pool,
        [on = devices_[static_cast<std::size_t>(device)], id](Stream asked) {
          return on->capture_status(asked).id == id;
        },
        RedirectFor::capture);
  });
  here.capture = Capture{pool, captured};
  if (begun) return void(++here.pools[pool].users);
  simulated(device).end_capture(captured);
  here.capture.reset();
}

void Player::end_capture(int device) {
  Place& here = place(device);
  if (!here.capture) return;
  const Capture capture = *std::exchange(here.capture, std::nullopt);
  simulated(device).end_capture(capture.stream);
  allocator_->end_allocate_to_pool(device, capture.pool);
}

void Player::apply_to_pool(const Operation& operation) {
  const int index = operation.device;
  const PoolId id = memory_pool(operation.name);
  Pool& pool = place(index).pools[id];
  const auto mine = [self = std::this_thread::get_id()](Stream) { return std::this_thread::get_id() == self; };
  switch (operation.kind) {
    case Kind::create_pool:
      if (pool.users == 0 && attempt([&] { allocator_->create_or_retain_pool(index, id); })) ++pool.users;
      return;
    case Kind::begin_pool:
      if (pool.users == 0 || pool.redirects) return;
      if (!attempt([&] { allocator_->begin_allocate_to_pool(index, id, mine, RedirectFor::thread); })) return;
      ++pool.users;
      pool.redirects = true;
      return;
    case Kind::end_pool:
      if (!pool.redirects) return;
      attempt([&] { allocator_->end_allocate_to_pool(index, id); });
      pool.redirects = false;
      [[fallthrough]];
    case Kind::release_pool:
      if (pool.users == 0 || pool.redirects) return;
      if (attempt([&] { allocator_->release_pool(index, id); })) --pool.users;
      return;
    case Kind::set_no_split:
      if (pool.users > 0) attempt([&] { allocator_->set_no_split(index, id); });
      return;
    case Kind::set_use_on_oom:
      if (pool.users > 0) attempt([&] { allocator_->set_use_on_oom(index, id, operation.amount != 0); });
      return;
    case Kind::empty_pool:  // there may be no such pool any more
      attempt([&] { allocator_->empty_cache(index, id); }, Mistakes::allowed);
      return;
    default:
      return;
  }
}

void Player::checkpoint(int device, PoolId pool) {
  const auto known = place(device).pools.find(pool);
  if (captures() || known == place(device).pools.end() || known->second.users == 0) return;
  Checkpoint taken;
  const auto take = [&] { taken.state = allocator_->checkpoint_pool(device, pool); };
  if (!attempt(take, Mistakes::allowed)) return;  // refused while blocks wait for streams
  for (const auto& [name, live] : live_) {
    if (live.device == device && live.pool == pool) taken.live[live.ptr] = live;
  }
  place(device).checkpoints[pool] = std::move(taken);
}

// Restores a pool as cudagraph trees do it: nothing of the pool is in use any more. It is refused where blocks wait for
// streams.
void Player::restore(int device, PoolId pool) {
  const auto found = place(device).checkpoints.find(pool);
  if (captures() || found == place(device).checkpoints.end()) return;
  if (!attempt_on_device([&] { simulated(device).synchronize(); })) return;
  RestoreResult result;
  if (!attempt([&] { result = allocator_->restore_pool(device, found->second.state); }, Mistakes::allowed)) return;
  ++restored_;
  std::erase_if(live_, [&](const auto& each) {
    const Live& live = each.second;
    const bool freed = std::find(result.freed.begin(), result.freed.end(), live.ptr) != result.freed.end();
    if (freed && !live.given_back) simulated(device).given_back(range(live).address);
    if (freed) donated_.erase(each.first);
    return freed;
  });
  for (void* const ptr : result.created) {
    Live live = found->second.live.at(ptr);
    live.given_back = false;
    live.used_on = {};
    live.used_on[live.home] = true;
    simulated(device).handed_out(range(live).address, live.bytes, stream_of(device, live.home));
    live_.emplace(next_restored_++, live);
  }
}

// ---- Mistakes, faults and books

void Player::misuse(const Live& live, Misuse how) {
  const auto refused = [&](const std::function<void()>& action) {
    try {
      action();
    } catch (const InvalidArgument&) {
      return;
    }
    trouble("a mistake was not refused");
  };
  char foreign = 0;
  const auto other_device = (live.device + 1) % allocator_->device_count();
  const Stream stream = stream_of(live.device, live.home);
  switch (how) {
    case Misuse::free_twice: {
      void* ptr = nullptr;
      const bool freed = attempt([&] { ptr = allocator_->allocate(live.bytes, live.device, stream); }) &&
                         attempt([&] { allocator_->deallocate(ptr); });
      if (freed) refused([&] { allocator_->deallocate(ptr); });
      return;
    }
    case Misuse::free_inside:
      return refused([&] { allocator_->deallocate(static_cast<char*>(live.ptr) + 1); });
    case Misuse::wrong_size:
      return refused([&] { allocator_->deallocate(live.ptr, live.bytes + 1, live.device, stream); });
    case Misuse::wrong_device:
      return refused([&] { allocator_->deallocate(live.ptr, live.bytes, other_device, stream); });
    case Misuse::foreign_pointer:
      return refused([&] { allocator_->deallocate(&foreign); });
    case Misuse::kCount:
      return;
  }
}

void Player::fail(const Operation& operation) {
  Fault fault;
  if (operation.name != 0) fault.call = static_cast<DeviceCall>((operation.name - 1) % kDeviceCallCount);
  fault.nth = std::max<std::uint64_t>(operation.amount, 1);
  fault.out_of_memory = operation.stream == 0;
  fault.code = kInjectedCode;
  simulated(operation.device).set_faults({fault});
}

void Player::check_counts() {
  for (int i = 0; i < allocator_->device_count(); ++i) {
    const auto held =
        std::count_if(live_.begin(), live_.end(), [i](const auto& each) { return each.second.device == i; });
    const std::int64_t counted = allocator_->memory_stats(i).allocation.all.current;
    if (counted != held) trouble(fmt::format("device {} counts {} live allocations, not {}", i, counted, held));
  }
}

void Player::check_tables() {
  if (const std::string broken = allocator_->validate(); !broken.empty()) trouble("validate: " + broken);
  const Snapshot snapshot = allocator_->snapshot({}, /*include_traces=*/false);
  for (int i = 0; i < allocator_->device_count(); ++i) {
    DeviceStats counted = recount(snapshot, i);
    DeviceStats told = only_current(allocator_->memory_stats(i));
    if (may_sleep_ || caches_) keep_sums_alone(counted, told);
    if (asleep_) counted.reserved_bytes = told.reserved_bytes;  // the snapshot shows what sleeps, too
    const std::string differs = difference(told, counted);
    if (!differs.empty()) trouble(fmt::format("device {}, against a count of its snapshot: {}", i, differs));
  }
}

std::string play(const Program& program, Player& player) {
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const std::string trouble = player.step(program.operations[i]);
    if (!trouble.empty())
      return fmt::format("operation {} ({}): {}", i, to_string(program.operations[i].kind), trouble);
  }
  return player.finish();
}

std::string play(const Program& program, const Player::Config& config) {
  Player player(program, config);
  return play(program, player);
}

}  // namespace cachalot
