// The functions of CachingAllocator by group, in the order of its headers.

#include "cachalot/allocator_groups.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "api/allocator_state.h"
#include "base/check.h"
#include "base/format.h"
#include "cachalot/caching_allocator.h"
#include "device/addresses.h"
#include "heap/observers.h"
#include "policy/option_grammar.h"

CACHALOT_BEGIN

namespace {

// The caller holds the options' lock.
void apply(AllocatorState& state, const Options& options, bool sets_fraction, bool sets_limit) {
  const HeapKind heap = selected_heap(state.options);
  CACHALOT_REQUIRE(selected_heap(options) == heap,
                   "heap:{} cannot be set at run time: the heap is '{}' since the allocator was made",
                   to_string(selected_heap(options)), to_string(heap));
  const auto require_same = [](const char* what, bool wanted, bool is) {
    CACHALOT_REQUIRE(wanted == is, "{}:{} cannot be set at run time: the {} is {} since the allocator was made", what,
                     wanted ? "True" : "False", what, is ? "on" : "off");
  };
  require_same("debug", options.debug, state.options.debug);
  require_same("guard", has_guard(options), has_guard(state.options));
  if (sets_fraction) HeldLimit::require_fraction(options.per_process_memory_fraction);
  state.options = options;
  for (const auto& allocator : state.devices()) {
    allocator->apply(options);
    if (sets_fraction) allocator->set_memory_fraction(options.per_process_memory_fraction, Limits::Setter::option);
    if (sets_limit) allocator->set_limit(options.limit, Limits::Setter::option);
  }
}

}  // namespace

void AllocatorSettings::configure(std::string_view text) {
  const auto lock = state_.lock_options();
  // The fraction is NaN until the text names one: set_memory_fraction may have changed a device's since.
  Options base = state_.options;
  base.per_process_memory_fraction = std::numeric_limits<double>::quiet_NaN();
  Options options = parse_options(text, base);
  const bool names_fraction = !std::isnan(options.per_process_memory_fraction);
  if (!names_fraction) options.per_process_memory_fraction = state_.options.per_process_memory_fraction;
  apply(state_, options, names_fraction, names_option(text, "limit"));
}

void AllocatorSettings::configure(const Options& options) {
  const auto lock = state_.lock_options();
  apply(state_, options, options.per_process_memory_fraction != state_.options.per_process_memory_fraction,
        options.limit != state_.options.limit);
}

Options AllocatorSettings::options() const { return state_.current_options(); }

void AllocatorSettings::set_memory_fraction(double fraction, int device) {
  state_.at(device).set_memory_fraction(fraction);
}
double AllocatorSettings::memory_fraction(int device) const { return state_.at(device).memory_fraction(); }

void AllocatorSettings::set_caching_enabled(bool enabled) {
  const auto& allocators = state_.devices();
  state_.caching_enabled.store(enabled);
  for (const auto& allocator : allocators) allocator->uncached.set_caching_enabled(enabled);
}

bool AllocatorSettings::caching_enabled() const { return state_.caching_enabled.load(); }

namespace {

std::optional<std::size_t> unless_none(std::size_t bytes) {
  return bytes == HeldLimit::kNone ? std::nullopt : std::optional(bytes);
}

}  // namespace

void AllocatorLimits::set_limit(const MemoryLimit& limit, int device) { state_.at(device).set_limit(limit); }

void AllocatorLimits::set_soft_limit(const MemoryLimit& limit, SoftLimitCallback callback, int device) {
  state_.at(device).limits.set_soft(limit, std::move(callback));
}

LimitFigures AllocatorLimits::limit_figures(int device) const {
  DeviceAllocator& allocator = state_.at(device);
  LimitFigures figures;
  figures.device = device;
  figures.reservation_bytes = allocator.level.reserved_unused();
  const DeviceLock lock(allocator.state.mutex);
  const Ledger& ledger = allocator.state.ledger;
  figures.limit_bytes = unless_none(ledger.limit(lock));
  figures.set_by = allocator.limits.holding(lock);
  figures.soft_limit_bytes = unless_none(ledger.soft_limit(lock));
  figures.held_bytes = ledger.held_bytes(lock);
  return figures;
}

std::size_t AllocatorLimits::trim(std::size_t keep_bytes, int device) {
  return state_.at(device).level.trim(keep_bytes);
}

void AllocatorLimits::reserve(std::size_t bytes, int device) { state_.at(device).level.reserve(bytes); }

std::size_t AllocatorFigures::memory_allocated(int device) const {
  return state_.at(device).inspection.memory_allocated();
}
std::size_t AllocatorFigures::memory_reserved(int device) const {
  return state_.at(device).inspection.memory_reserved();
}
std::size_t AllocatorFigures::max_memory_allocated(int device) const {
  return state_.at(device).inspection.max_memory_allocated();
}
std::size_t AllocatorFigures::max_memory_reserved(int device) const {
  return state_.at(device).inspection.max_memory_reserved();
}
DeviceStats AllocatorFigures::memory_stats(int device) const { return state_.at(device).inspection.stats(); }
AddedStats AllocatorFigures::added_stats(int device) const { return state_.at(device).inspection.added_stats(); }
DeviceUsage AllocatorFigures::device_usage(int device) const { return state_.at(device).inspection.usage(); }
Fragmentation AllocatorFigures::fragmentation(int device) const { return state_.at(device).inspection.fragmentation(); }

Snapshot AllocatorFigures::snapshot(PoolId pool, bool include_traces) {
  Snapshot snapshot;
  snapshot.options = state_.current_options();
  for (const auto& allocator : state_.devices()) allocator->inspection.snapshot_into(snapshot, pool, include_traces);
  return snapshot;
}

void AllocatorFigures::reset_peak_stats(int device) {
  for (const auto& allocator : state_.selected(device)) allocator->inspection.reset_peak_stats();
}

void AllocatorFigures::reset_accumulated_stats(int device) {
  for (const auto& allocator : state_.selected(device)) allocator->inspection.reset_accumulated_stats();
}

std::size_t AllocatorFigures::largest_available(int device, bool starting_from_free_memory) {
  return state_.at(device).inspection.largest_available(starting_from_free_memory);
}

std::string AllocatorFigures::validate() const {
  for (const auto& allocator : state_.devices()) {
    if (std::string broken = allocator->inspection.validate(); !broken.empty()) return broken;
  }
  return state_.front().validate();
}

std::size_t AllocatorFigures::metadata_bytes() const {
  std::size_t bytes = sizeof(CachingAllocator) + sizeof(AllocatorState) + state_.front().metadata_bytes();
  for (const auto& allocator : state_.devices()) bytes += allocator->inspection.metadata_bytes(sizeof(DeviceAllocator));
  return bytes + state_.page_map().metadata_bytes();
}

void AllocatorObservers::add_out_of_memory_observer(const OutOfMemoryObserver& observer) {
  for (const auto& allocator : state_.devices()) allocator->pressure.add_out_of_memory_observer(observer);
}

void AllocatorObservers::add_refusal_observer(const RefusalObserver& observer) {
  for (const auto& allocator : state_.devices()) allocator->pressure.add_refusal_observer(observer);
}

void AllocatorObservers::add_free_memory_callback(const FreeMemoryCallback& callback) {
  for (const auto& allocator : state_.devices()) allocator->pressure.add_free_memory_callback(callback);
}

void AllocatorObservers::add_last_resort(const FreeMemoryCallback& callback) {
  for (const auto& allocator : state_.devices()) allocator->pressure.add_last_resort(callback);
}

void AllocatorObservers::add_change_tracker(const ChangeTracker& tracker) {
  for (const auto& allocator : state_.devices()) allocator->state.observers.add_change_tracker(tracker);
}

void AllocatorObservers::add_watcher(const std::shared_ptr<Watcher>& watcher) {
  CACHALOT_REQUIRE(watcher != nullptr, "add_watcher: the watcher is null; it must be an object");
  for (const auto& allocator : state_.devices()) allocator->state.observers.add_watcher(watcher);
}

void AllocatorObservers::remove_watcher(const Watcher* watcher) {
  for (const auto& allocator : state_.devices_if_own()) allocator->state.observers.remove_watcher(watcher);
}

void AllocatorObservers::add_segment_tracker(const std::shared_ptr<SegmentTracker>& tracker) {
  CACHALOT_REQUIRE(tracker != nullptr, "add_segment_tracker: the tracker is null; it must be an object");
  try {
    for (const auto& allocator : state_.devices()) allocator->inspection.add_segment_tracker(tracker);
  } catch (const std::bad_alloc&) {
    remove_segment_tracker(tracker.get());
    throw;
  }
}

void AllocatorObservers::remove_segment_tracker(const SegmentTracker* tracker) {
  for (const auto& allocator : state_.devices_if_own()) allocator->state.observers.remove_segment_tracker(tracker);
}

void AllocatorObservers::set_slow_work_observer(const std::shared_ptr<SlowWorkObserver>& observer) {
  for (const auto& allocator : state_.devices()) allocator->state.observers.set_slow_work_observer(observer);
}

void AllocatorObservers::record_history(const HistoryOptions& history) {
  for (const auto& allocator : state_.devices()) allocator->state.observers.record_history(history);
}

void AllocatorObservers::annotate(const void* ptr, const Context& annotation) {
  const auto [block, start] = state_.front().find(ptr);
  if (block != nullptr && state_.owner_of(*block).state.observers.annotate(*block, start, annotation)) return;
  throw InvalidArgument(formatted("annotateMemory: no live allocation found at pointer {}", ptr));
}

Context AllocatorObservers::context_of(const void* ptr) const {
  const auto [block, start] = state_.front().find(ptr);
  return block == nullptr ? nullptr : cachalot::context_of(state_.owner_of(*block).state, *block, start);
}

bool AllocatorObservers::history_enabled() const {
  for (const auto& allocator : state_.devices()) {
    if (allocator->state.observers.history_enabled()) return true;
  }
  return false;
}

namespace {

// Runs `action`. If it refuses a private pool, the front is told.
template <typename Action>
auto with_pool(const AllocatorState& state, int device, PoolId pool, Action action) {
  DeviceAllocator& allocator = state.at(device);
  try {
    return action(allocator);
  } catch (const InvalidArgument& refusal) {
    state.front().note_pool_refusal(device, pool, refusal.what());
    throw;
  }
}

}  // namespace

void AllocatorPools::create_or_retain_pool(int device, PoolId pool, std::shared_ptr<SegmentProvider> provider) {
  state_.at(device).pools.create_or_retain_pool(pool, std::move(provider));
  state_.front().note_pool_users(device, pool);
}

void AllocatorPools::begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason) {
  DeviceAllocator& allocator = state_.at(device);
  state_.front().note_pool_refusal(device, pool, "begin_allocate_to_pool");
  allocator.pools.begin_allocate_to_pool(pool, std::move(filter), reason);
  state_.front().note_pool_users(device, pool);
}

// Calls that give back do nothing in a forked child, as frees: destructors make them.
void AllocatorPools::end_allocate_to_pool(int device, PoolId pool) {
  if (state_.at_if_own(device) == nullptr) return;
  with_pool(state_, device, pool, [&](DeviceAllocator& allocator) { allocator.pools.end_allocate_to_pool(pool); });
}

void AllocatorPools::begin_capture(int device) { state_.at(device).pools.begin_capture(); }
void AllocatorPools::end_capture(int device) {
  if (DeviceAllocator* const allocator = state_.at_if_own(device)) allocator->pools.end_capture();
}

void AllocatorPools::release_pool(int device, PoolId pool) {
  if (state_.at_if_own(device) == nullptr) return;
  with_pool(state_, device, pool, [&](DeviceAllocator& allocator) { allocator.pools.release_pool(pool); });
  state_.front().note_pool_users(device, pool);
}

int AllocatorPools::pool_use_count(int device, PoolId pool) const {
  return state_.at(device).pools.pool_use_count(pool);
}
void AllocatorPools::set_use_on_oom(int device, PoolId pool, bool use_on_oom) {
  state_.at(device).pools.set_use_on_oom(pool, use_on_oom);
}
void AllocatorPools::set_no_split(int device, PoolId pool) {
  with_pool(state_, device, pool, [&](DeviceAllocator& allocator) { allocator.pools.set_no_split(pool); });
}

void AllocatorPools::set_plain(int device, PoolId pool) {
  with_pool(state_, device, pool, [&](DeviceAllocator& allocator) { allocator.pools.set_plain(pool); });
}

bool AllocatorPools::pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const {
  return with_pool(state_, device, pool,
                   [&](DeviceAllocator&) { return state_.front().pool_has_exactly(device, pool, live); });
}

PoolCheckpoint AllocatorPools::checkpoint_pool(int device, PoolId pool) const {
  return with_pool(state_, device, pool,
                   [&](DeviceAllocator&) { return state_.front().checkpoint_pool(device, pool); });
}

RestoreResult AllocatorPools::restore_pool(int device, const PoolCheckpoint& checkpoint) {
  return with_pool(state_, device, checkpoint.pool,
                   [&](DeviceAllocator&) { return state_.front().restore_pool(device, checkpoint); });
}

namespace {

// Returns those of selected(device) that have the pool. Refuses before any of them has done anything.
std::vector<DeviceAllocator*> sleepers(const AllocatorState& state, PoolId pool, int device, const char* call) {
  std::vector<DeviceAllocator*> allocators;
  for (const auto& allocator : state.selected(device)) {
    if (allocator->sleeping.may_sleep(pool, call)) allocators.push_back(allocator.get());
  }
  return allocators;
}

void wake(const AllocatorState& state, const std::vector<DeviceAllocator*>& allocators, PoolId pool) {
  state.front().run([&] {
    for (DeviceAllocator* allocator : allocators) {
      const SlowWorkRange range(allocator->state.observers.slow_work_observer(),
                                {SlowWork::Kind::restore_physical, allocator->state.index});
      state.front().wake(allocator->state.index, [&] { allocator->sleeping.restore_physical(pool); });
      allocator->tell_if_crossed();
    }
  });
}

void wake_as_asked(const AllocatorState& state, const std::vector<DeviceAllocator*>& allocators, PoolId pool) {
  wake(state, allocators, pool);
  for (DeviceAllocator* const allocator : allocators) allocator->evictable.set_lost_content(pool, false);
}

SleepOptions saved_if(bool save) { return {save ? Keep::pinned : Keep::nothing, {}}; }

void require_good(const SleepOptions& options, const char* call) {
  if (options.keep == Keep::file) return SavedFile::require_folder(options.folder, call);
  CACHALOT_REQUIRE(options.folder.empty(), "{}: folder is '{}'; only Keep::file has one", call, options.folder);
}

}  // namespace

void AllocatorSleep::begin_tagged(std::string_view tag, int device) {
  CACHALOT_REQUIRE(!tag.empty(), "begin_tagged: the tag is '{}'; it must not be empty", tag);
  const auto allocators = state_.selected(device);
  const PoolId pool = state_.tags.make(tag);
  std::size_t begun = 0;
  try {
    for (const auto& allocator : allocators) {
      allocator->pools.begin_tagged(pool, tag);
      ++begun;
    }
  } catch (...) {
    for (const auto& allocator : allocators.first(begun)) allocator->pools.end_tagged(pool, tag);
    throw;
  }
}

void AllocatorSleep::end_tagged(std::string_view tag, int device) {
  const auto allocators = state_.selected(device);
  const PoolId pool = state_.tags.pool_of(tag);
  for (const auto& allocator : allocators) allocator->pools.end_tagged(pool, tag);
}

std::vector<TagMemory> AllocatorSleep::tags() const {
  const auto& allocators = state_.devices();
  std::vector<TagMemory> result;
  for (const auto& [tag, pool] : state_.tags.all()) {
    for (const auto& allocator : allocators) {
      std::optional<TagMemory> memory = allocator->inspection.tag_memory(pool);
      if (!memory || (!memory->is_asleep && memory->reserved_bytes == 0)) continue;
      memory->tag = tag;
      memory->device = allocator->state.index;
      result.push_back(*std::move(memory));
    }
  }
  return result;
}

void AllocatorSleep::make_evictable(std::string_view tag, const EvictOptions& options, int device) {
  CACHALOT_REQUIRE(!tag.empty(), "make_evictable: the tag is '{}'; it must not be empty", tag);
  require_good(options.sleep, "make_evictable");
  const auto allocators = state_.selected(device);
  for (const auto& allocator : allocators) allocator->sleeping.require_pages("make_evictable");
  const PoolId pool = state_.tags.make(tag);
  for (const auto& allocator : allocators) allocator->evictable.make_evictable(pool, tag, options);
}

void AllocatorSleep::make_resident(std::string_view tag, int device) {
  const auto allocators = state_.selected(device);
  const PoolId pool = state_.tags.pool_of(tag);
  for (const auto& allocator : allocators) allocator->evictable.make_resident(pool);
}

bool AllocatorSleep::ensure(std::string_view tag, int device) {
  const auto allocators = state_.selected(device);
  for (const auto& allocator : allocators) allocator->sleeping.require_pages("ensure");
  const PoolId pool = state_.tags.pool_of(tag);
  const std::lock_guard<std::recursive_mutex> ensuring(state_.ensuring);
  std::vector<EvictablePools*> lost;
  lost.reserve(allocators.size());
  std::size_t held = 0;
  try {
    for (const auto& allocator : allocators) {
      allocator->pools.create_tag(pool, tag);
      const bool is_lost = allocator->evictable.ensure(pool, [&] { wake(state_, {allocator.get()}, pool); });
      if (is_lost) lost.push_back(&allocator->evictable);
      ++held;
    }
  } catch (...) {
    for (EvictablePools* const evictable : lost) evictable->set_lost_content(pool, true);
    for (const auto& allocator : allocators.first(held)) allocator->evictable.let_go(pool);
    throw;
  }
  return !lost.empty();
}

void AllocatorSleep::let_go(std::string_view tag, int device) {
  if (state_.is_inherited()) return;
  const PoolId pool = state_.tags.pool_of(tag);
  for (const auto& allocator : state_.selected(device)) allocator->evictable.let_go(pool);
}

std::size_t AllocatorSleep::give_way(std::size_t bytes, int device) {
  return state_.at(device).evictable.give_way(bytes);
}

bool AllocatorSleep::read_saved(const void* from, void* to, std::size_t bytes) const {
  for (const auto& allocator : state_.devices()) {
    if (allocator->sleeping.read_saved(reinterpret_cast<Address>(from), to, bytes)) return true;
  }
  return false;
}

void AllocatorSleep::release_physical(std::string_view tag, bool save, int device) {
  release_physical(tag, saved_if(save), device);
}

void AllocatorSleep::release_tags(Span<const std::string_view> tags, bool save, int device) {
  release_tags(tags, saved_if(save), device);
}

void AllocatorSleep::release_physical(PoolId pool, bool save, int device) {
  release_physical(pool, saved_if(save), device);
}

void AllocatorSleep::release_physical(std::string_view tag, const SleepOptions& options, int device) {
  const auto allocators = state_.selected(device);
  for (const auto& allocator : allocators) allocator->sleeping.require_pages("release_physical");
  const PoolId pool = state_.tags.pool_of(tag);
  for (const auto& allocator : allocators) allocator->pools.create_tag(pool, tag);
  release_physical(pool, options, device);
}

void AllocatorSleep::restore_physical(std::string_view tag, int device) {
  for (const auto& allocator : state_.selected(device)) allocator->sleeping.require_pages("restore_physical");
  const PoolId pool = state_.tags.pool_of(tag);
  wake_as_asked(state_, sleepers(state_, pool, device, "restore_physical"), pool);
}

void AllocatorSleep::release_tags(Span<const std::string_view> tags, const SleepOptions& options, int device) {
  for (const std::string_view tag : tags) state_.tags.pool_of(tag);
  for (const std::string_view tag : tags) release_physical(tag, options, device);
}

void AllocatorSleep::restore_tags(Span<const std::string_view> tags, int device) {
  for (const std::string_view tag : tags) state_.tags.pool_of(tag);
  for (const std::string_view tag : tags) restore_physical(tag, device);
}

void AllocatorSleep::release_physical(PoolId pool, const SleepOptions& options, int device) {
  require_good(options, "release_physical");
  const std::vector<DeviceAllocator*> allocators = sleepers(state_, pool, device, "release_physical");
  CACHALOT_REQUIRE(!allocators.empty(), "release_physical: there is no pool ({}, {})", pool.first, pool.second);
  state_.front().run([&] {
    for (DeviceAllocator* allocator : allocators) {
      const SlowWorkRange range(allocator->state.observers.slow_work_observer(),
                                {SlowWork::Kind::release_physical, allocator->state.index});
      state_.front().put_to_sleep(allocator->state.index, [&] { allocator->sleeping.release_physical(pool, options); });
    }
  });
}

void AllocatorSleep::restore_physical(PoolId pool, int device) {
  const std::vector<DeviceAllocator*> allocators = sleepers(state_, pool, device, "restore_physical");
  CACHALOT_REQUIRE(!allocators.empty(), "restore_physical: there is no pool ({}, {})", pool.first, pool.second);
  wake_as_asked(state_, allocators, pool);
}

std::size_t AllocatorSharing::handle_count(const void* ptr) const {
  if (const auto [block, start] = state_.front().find(ptr); block != nullptr) {
    if (const auto count = state_.owner_of(*block).sharing.handle_count(*block, start)) return *count;
  }
  throw state_.front().not_live(ptr, Front::PointerUse::other);
}

// The canary before the allocation is shared as well: it lies in the same handle, or in one that has to be opened anyway.
SharedMemory AllocatorSharing::share(const void* ptr) {
  if (const auto [block, start] = state_.front().find(ptr); block != nullptr) {
    if (auto memory = state_.owner_of(*block).sharing.share(*block, start)) {
      const std::size_t canary = as_address(ptr) - as_address(start);
      memory->offset += canary;
      memory->bytes -= canary;
      return *std::move(memory);
    }
  }
  throw state_.front().not_live(ptr, Front::PointerUse::other);
}

SharedMemory AllocatorSharing::share_contiguous(const void* ptr) {
  const std::size_t handles = handle_count(ptr);
  CACHALOT_REQUIRE(
      handles == 1,
      "the allocation at {} lies in {} handles, not in one: ask for it as contiguous (CACHALOT_CONTIGUOUS)", ptr,
      handles);
  return share(ptr);
}

void* AllocatorSharing::open_shared(const SharedMemory& memory, int device) {
  return as_pointer(state_.at(device).sharing.open_shared(memory));
}

void AllocatorSharing::close_shared(void* base) {
  for (const auto& allocator : state_.devices()) {
    if (allocator->sharing.close_shared(as_address(base))) return;
  }
  throw InvalidArgument(formatted("{} is not open: open_shared did not return it, or it was closed already", base));
}

void AllocatorSharing::enable_peer_access(int device, int peer) {
  DeviceAllocator& user = state_.at(device);
  DeviceAllocator& owner = state_.at(peer);
  CACHALOT_REQUIRE(device != peer, "peer access of device {} to itself: a peer is another device", device);
  user.sharing.enable_access_to(peer);
  owner.sharing.open_to(device);
}

CACHALOT_END
