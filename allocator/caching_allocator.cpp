#include "cachalot/caching_allocator.h"

#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/fork_aware.h"
#include "base/format.h"
#include "device/addresses.h"
#include "device_allocator.h"
#include "guard/guard.h"

namespace cachalot {

// Whose process it is. In a forked child it takes everything that belongs to the parent out of reach.
class CachingAllocator::ForkGuard final : public ForkAware {
 public:
  explicit ForkGuard(CachingAllocator& allocator) : allocator_(allocator) {}

 private:
  void on_fork() noexcept override {
    allocator_.unguarded_map_ = &no_blocks();
    allocator_.unguarded_devices_.clear();
    page_map_.swap(allocator_.page_map_);
    devices_.swap(allocator_.devices_);
    guard_log_.swap(allocator_.guard_log_);
    guards_.swap(allocator_.guards_);
  }

  CachingAllocator& allocator_;
  // The parent's.
  std::unique_ptr<PageMap> page_map_;
  DeviceAllocators devices_;
  std::unique_ptr<GuardLog> guard_log_;
  std::vector<std::unique_ptr<Guard>> guards_;
};

namespace {

bool record_use(DeviceAllocator& device, Block& block, const void* ptr, Stream stream) {
  return device.fast.record_stream(block, ptr, device.streams.identify(stream));
}

}  // namespace

CachingAllocator::CachingAllocator(std::vector<std::shared_ptr<Device>> devices, const Options& options,
                                   const KernelsFactory& kernels)
    : fork_guard_(std::make_unique<ForkGuard>(*this)),
      page_map_(std::make_unique<PageMap>()),
      unguarded_map_(page_map_.get()),
      options_(options) {
  no_blocks();  // a forked child should not have to make it
  for (std::size_t i = 0; i < devices.size(); ++i) {
    CACHALOT_REQUIRE(devices[i] != nullptr, "device {} is null", i);
    CACHALOT_REQUIRE(devices[i]->index() == static_cast<int>(i), "device {} says its index is {}", i,
                     devices[i]->index());
    devices_.push_back(std::make_unique<DeviceAllocator>(std::move(devices[i]), *page_map_, options));
  }
  if (has_guard(options) || options.debug) {
    set_up_guard(kernels);
  } else {
    for (const auto& allocator : devices_) unguarded_devices_.push_back(allocator.get());
  }
}

// In a forked child what the parent has stays as it is.
CachingAllocator::~CachingAllocator() {
  life_.reset();
  if (is_inherited()) static_cast<void>(fork_guard_.release());
}

const PageMap& CachingAllocator::no_blocks() {
  static const PageMap& none = *new PageMap;
  return none;
}

bool CachingAllocator::is_inherited() const { return fork_guard_->is_inherited(); }
void CachingAllocator::require_own_process() const { fork_guard_->require_own_process("the allocator"); }

const CachingAllocator::DeviceAllocators& CachingAllocator::devices() const {
  require_own_process();
  return devices_;
}

DeviceAllocator& CachingAllocator::at(int device) const {
  if (static_cast<unsigned>(device) >= devices_.size()) [[unlikely]]
    refuse_device(device);
  return *devices_[static_cast<std::size_t>(device)];
}

const std::shared_ptr<Device>& CachingAllocator::device(int index) const { return at(index).state.device; }

void CachingAllocator::refuse_device(int device) const {
  require_own_process();
  CACHALOT_REQUIRE(!devices_.empty(),
                   "device {}: no GPU was found. The allocator was made without devices, and cuda_devices() is empty "
                   "without an NVIDIA driver or in a build without CUDA. Use a SimulatedDevice "
                   "(cachalot/simulated_device.h), or run the program under `cachalot simulate`",
                   device);
  throw InvalidArgument(formatted("device {} is not one of the {} devices (0 to {})", device, devices_.size(),
                                  static_cast<int>(devices_.size()) - 1));
}

std::vector<DeviceAllocator*> CachingAllocator::selected(int device) const {
  if (device != kAllDevices) return {&at(device)};
  std::vector<DeviceAllocator*> all;
  for (const auto& allocator : devices()) all.push_back(allocator.get());
  return all;
}

// --- malloc and free ------------------------------------------------------------------------------------------------

void* CachingAllocator::allocate(std::size_t bytes, int device, Stream stream) {
  if (static_cast<unsigned>(device) >= unguarded_devices_.size()) [[unlikely]]
    return allocate_guarded(bytes, device, stream, /*contiguous=*/false);
  return unguarded_devices_[static_cast<std::size_t>(device)]->fast.allocate(bytes, stream);
}

void* CachingAllocator::allocate(std::size_t bytes, int device, Stream stream, const AllocateOptions& options) {
  if (is_guarded()) return allocate_guarded(bytes, device, stream, options.contiguous);
  return options.contiguous ? at(device).fast.allocate_contiguous(bytes, stream)
                            : at(device).fast.allocate(bytes, stream);
}

void CachingAllocator::deallocate(void* ptr) {
  if (ptr == nullptr) return;
  Block* block = unguarded_map_->find(as_address(ptr));
  if (block == nullptr || !owner_of(*block).fast.deallocate(*block, ptr)) [[unlikely]]
    deallocate_outside_heaps(ptr);
}

void CachingAllocator::deallocate_outside_heaps(void* ptr) {
  if (is_guarded()) return deallocate_guarded(ptr);
  deallocate_uncached(ptr);
}

void CachingAllocator::deallocate(void* ptr, std::size_t bytes, int device, Stream stream) {
  if (static_cast<unsigned>(device) >= devices_.size()) [[unlikely]]
    return deallocate_on_no_device(device);
  DeviceAllocator& expected = *devices_[static_cast<std::size_t>(device)];
  if (ptr == nullptr) return;
  Block* block = unguarded_map_->find(as_address(ptr));
  if (block != nullptr && &owner_of(*block) != &expected && sizes(owner_of(*block).state, *block, ptr)) {
    throw InvalidArgument(
        formatted("{} is an allocation of device {}, not of device {}", ptr, BlockSlab::owner_of(*block), device));
  }
  if (block != nullptr && expected.fast.deallocate(*block, ptr, bytes, stream)) [[likely]]
    return;
  if (is_guarded()) return deallocate_guarded(ptr, device, bytes, stream);
  deallocate_uncached(ptr);
}

DeviceAllocator& CachingAllocator::owner_of(const Block& block) const {
  if (devices_.size() == 1) return *devices_[0];  // spares the usual case four loads that wait for each other
  return *devices_[static_cast<std::size_t>(BlockSlab::owner_of(block))];
}

// A forked child's frees do nothing: they are those of objects that it has inherited.
void CachingAllocator::deallocate_uncached(void* ptr) {
  if (is_inherited()) return;
  for (const auto& allocator : devices_) {
    if (allocator->uncached.deallocate(ptr)) return;
  }
  throw_not_live(ptr, PointerUse::free);
}

void CachingAllocator::deallocate_on_no_device(int device) const {
  if (!is_inherited()) refuse_device(device);
}

void CachingAllocator::deallocate_when_possible(void* ptr) noexcept {
  std::optional<GuardLog::Batch> heard;  // at its end, and nobody to throw to
  if (is_guarded()) heard.emplace(*guard_log_);
  try {
    deallocate(ptr);
  } catch (const CudaError&) {
    bool is_first = false;
    {
      const std::lock_guard<std::mutex> lock(late_frees_mutex_);
      late_frees_.push_back(ptr);
      is_first = !std::exchange(has_had_late_frees_, true);
    }
    if (is_first) add_free_memory_callback([this] { return finish_late_frees(); });
  } catch (...) {  // a caller's mistake: it is told before all ends
    heard.reset();
    std::terminate();
  }
}

template <typename Action>
void CachingAllocator::tell_after(Action action) {
  if (!is_guarded()) return action();
  guard_log_->tell_after(action);
}

// Whether anything was freed.
bool CachingAllocator::finish_late_frees() {
  std::vector<void*> late;
  {
    const std::lock_guard<std::mutex> lock(late_frees_mutex_);
    late.swap(late_frees_);
  }
  const std::size_t count = late.size();
  std::erase_if(late, [this](void* ptr) {
    try {
      deallocate(ptr);
      return true;
    } catch (const InvalidArgument&) {  // restore_pool has freed it meanwhile
      return true;
    } catch (...) {
      return false;
    }
  });
  const std::lock_guard<std::mutex> lock(late_frees_mutex_);
  late_frees_.insert(late_frees_.end(), late.begin(), late.end());
  return late.size() < count;
}

void CachingAllocator::record_stream(void* ptr, Stream stream) {
  if (ptr == nullptr) return;
  require_own_process();
  for (const auto& guard : guards_) {
    if (guard->record_stream(ptr, stream)) return;
  }
  const auto [block, start] = find(ptr);
  if (block == nullptr || !record_use(owner_of(*block), *block, start, stream)) {
    throw_not_live(ptr, PointerUse::other);
  }
}

void CachingAllocator::stream_ends(Stream stream) {
  require_own_process();
  for (const auto& device : devices_) device->streams.stream_ends(stream);
  for (const auto& guard : guards_) guard->stream_ends(stream);
}

CachingAllocator::Range CachingAllocator::base_allocation(void* ptr) const {
  if (const auto [block, start] = find(ptr); block != nullptr) {
    if (const auto segment = cachalot::base_allocation(owner_of(*block).state, *block, start)) {
      return {as_pointer(segment->address), segment->bytes};
    }
  }
  throw_not_live(ptr, PointerUse::other);
}

std::size_t CachingAllocator::requested_size(void* ptr) const {
  for (const auto& guard : guards_) {
    if (const auto bytes = guard->requested(ptr)) return *bytes;
  }
  if (const auto [block, start] = find(ptr); block != nullptr) {
    if (const auto sizes = cachalot::sizes(owner_of(*block).state, *block, start)) return sizes->requested;
  }
  throw_not_live(ptr, PointerUse::other);
}

std::size_t CachingAllocator::allocated_size(void* ptr) const {
  if (const auto [block, start] = find(ptr); block != nullptr) {
    if (const auto sizes = cachalot::sizes(owner_of(*block).state, *block, start)) return sizes->allocated;
  }
  throw_not_live(ptr, PointerUse::other);
}

int CachingAllocator::device_of(const void* ptr) const {
  const auto [block, start] = find(ptr);
  if (block != nullptr && sizes(owner_of(*block).state, *block, start)) return BlockSlab::owner_of(*block);
  for (const auto& allocator : devices_) {
    if (allocator->uncached.contains(start)) return allocator->state.index;
  }
  return -1;
}

void CachingAllocator::empty_cache(int device, PoolId pool) {
  require_own_process();
  tell_after([&] {
    finish_late_frees();
    for (Guard* guard : guards(device)) guard->drain();
    for (DeviceAllocator* allocator : selected(device)) allocator->recovery.empty_cache(pool, allocator->caches);
  });
}

void CachingAllocator::drain_thread_caches(int device) {
  for (DeviceAllocator* allocator : selected(device)) allocator->caches.drain();
}

// --- other processes, other GPUs --------------------------------------------------------------------------------------

std::size_t CachingAllocator::handle_count(const void* ptr) const {
  if (const auto [block, start] = find(ptr); block != nullptr) {
    if (const auto count = owner_of(*block).sharing.handle_count(*block, start)) return *count;
  }
  throw_not_live(ptr, PointerUse::other);
}

// The canary before the allocation is shared as well: it lies in the same handle, or in one that has to be opened anyway.
SharedMemory CachingAllocator::share(const void* ptr) {
  if (const auto [block, start] = find(ptr); block != nullptr) {
    if (auto memory = owner_of(*block).sharing.share(*block, start)) {
      const std::size_t canary = as_address(ptr) - as_address(start);
      memory->offset += canary;
      memory->bytes -= canary;
      return *std::move(memory);
    }
  }
  throw_not_live(ptr, PointerUse::other);
}

SharedMemory CachingAllocator::share_contiguous(const void* ptr) {
  const std::size_t handles = handle_count(ptr);
  CACHALOT_REQUIRE(
      handles == 1,
      "the allocation at {} lies in {} handles, not in one: ask for it as contiguous (CACHALOT_CONTIGUOUS)", ptr,
      handles);
  return share(ptr);
}

void* CachingAllocator::open_shared(const SharedMemory& memory, int device) {
  return as_pointer(at(device).sharing.open_shared(memory));
}

void CachingAllocator::close_shared(void* base) {
  for (const auto& allocator : devices()) {
    if (allocator->sharing.close_shared(as_address(base))) return;
  }
  throw InvalidArgument(formatted("{} is not open: open_shared did not return it, or it was closed already", base));
}

void CachingAllocator::enable_peer_access(int device, int peer) {
  DeviceAllocator& user = at(device);
  DeviceAllocator& owner = at(peer);
  CACHALOT_REQUIRE(device != peer, "peer access of device {} to itself: a peer is another device", device);
  user.sharing.enable_access_to(peer);
  owner.sharing.open_to(device);
}

// --- figures --------------------------------------------------------------------------------------------------------

std::size_t CachingAllocator::memory_allocated(int device) const { return at(device).inspection.memory_allocated(); }
std::size_t CachingAllocator::memory_reserved(int device) const { return at(device).inspection.memory_reserved(); }
std::size_t CachingAllocator::max_memory_allocated(int device) const {
  return at(device).inspection.max_memory_allocated();
}
std::size_t CachingAllocator::max_memory_reserved(int device) const {
  return at(device).inspection.max_memory_reserved();
}
DeviceStats CachingAllocator::memory_stats(int device) const { return at(device).inspection.stats(); }
Fragmentation CachingAllocator::fragmentation(int device) const { return at(device).inspection.fragmentation(); }

Snapshot CachingAllocator::snapshot(PoolId pool, bool include_traces) {
  Snapshot snapshot;
  snapshot.options = options();
  for (const auto& allocator : devices()) allocator->inspection.snapshot_into(snapshot, pool, include_traces);
  return snapshot;
}

void CachingAllocator::reset_peak_stats(int device) {
  for (DeviceAllocator* allocator : selected(device)) allocator->inspection.reset_peak_stats();
}

void CachingAllocator::reset_accumulated_stats(int device) {
  for (DeviceAllocator* allocator : selected(device)) allocator->inspection.reset_accumulated_stats();
}

std::size_t CachingAllocator::largest_available(int device, bool starting_from_free_memory) {
  return at(device).inspection.largest_available(starting_from_free_memory);
}

std::string CachingAllocator::validate() const {
  for (const auto& allocator : devices()) {
    if (std::string broken = allocator->inspection.validate(); !broken.empty()) return broken;
  }
  for (const auto& guard : guards_) {
    if (std::string broken = guard->validate(); !broken.empty()) return broken;
  }
  return "";
}

std::size_t CachingAllocator::metadata_bytes() const {
  require_own_process();
  std::size_t bytes = sizeof(*this) + page_map_->metadata_bytes();
  for (const auto& allocator : devices()) bytes += allocator->inspection.metadata_bytes(sizeof(DeviceAllocator));
  for (const auto& guard : guards_) bytes += guard->metadata_bytes();
  return bytes;
}

// --- options --------------------------------------------------------------------------------------------------------

void CachingAllocator::configure(std::string_view text) {
  require_own_process();
  const std::lock_guard<std::mutex> lock(options_mutex_);
  // The fraction is no number until the text names one: set_memory_fraction may have changed a device's since.
  Options base = options_;
  base.per_process_memory_fraction = std::numeric_limits<double>::quiet_NaN();
  Options options = parse_options(text, base);
  const bool names_fraction = !std::isnan(options.per_process_memory_fraction);
  if (!names_fraction) options.per_process_memory_fraction = options_.per_process_memory_fraction;
  apply(options, names_fraction);
}

void CachingAllocator::configure(const Options& options) {
  require_own_process();
  const std::lock_guard<std::mutex> lock(options_mutex_);
  apply(options, options.per_process_memory_fraction != options_.per_process_memory_fraction);
}

void CachingAllocator::apply(const Options& options, bool sets_fraction) {
  const HeapKind heap = selected_heap(options_);
  CACHALOT_REQUIRE(selected_heap(options) == heap,
                   "heap:{} cannot be set at run time: the heap is '{}' since the allocator was made",
                   to_string(selected_heap(options)), to_string(heap));
  const auto require_same = [](const char* what, bool wanted, bool is) {
    CACHALOT_REQUIRE(wanted == is, "{}:{} cannot be set at run time: the {} is {} since the allocator was made", what,
                     wanted ? "True" : "False", what, is ? "on" : "off");
  };
  require_same("debug", options.debug, options_.debug);
  require_same("guard", has_guard(options), has_guard(options_));
  if (sets_fraction) Ledger::require_fraction(options.per_process_memory_fraction);
  options_ = options;
  for (const auto& guard : guards_) guard->set_quarantine(options.guard_quarantine);
  for (const auto& allocator : devices()) {
    allocator->apply(options);
    if (sets_fraction) allocator->set_memory_fraction(options.per_process_memory_fraction);
  }
}

Options CachingAllocator::options() const {
  require_own_process();
  const std::lock_guard<std::mutex> lock(options_mutex_);
  return options_;
}

void CachingAllocator::set_memory_fraction(double fraction, int device) { at(device).set_memory_fraction(fraction); }
double CachingAllocator::memory_fraction(int device) const { return at(device).memory_fraction(); }

void CachingAllocator::set_caching_enabled(bool enabled) {
  require_own_process();
  caching_enabled_.store(enabled);
  for (const auto& allocator : devices()) allocator->uncached.set_caching_enabled(enabled);
}

bool CachingAllocator::caching_enabled() const { return caching_enabled_.load(); }

// --- observers ------------------------------------------------------------------------------------------------------

void CachingAllocator::add_out_of_memory_observer(const OutOfMemoryObserver& observer) {
  for (const auto& allocator : devices()) allocator->pressure.add_out_of_memory_observer(observer);
}

void CachingAllocator::add_free_memory_callback(const FreeMemoryCallback& callback) {
  for (const auto& allocator : devices()) allocator->pressure.add_free_memory_callback(callback);
}

void CachingAllocator::add_change_tracker(const ChangeTracker& tracker) {
  for (const auto& allocator : devices()) allocator->state.observers.add_change_tracker(tracker);
}

void CachingAllocator::add_watcher(const std::shared_ptr<Watcher>& watcher) {
  CACHALOT_REQUIRE(watcher != nullptr, "add_watcher: the watcher is null; it must be an object");
  for (const auto& allocator : devices()) allocator->state.observers.add_watcher(watcher);
}

void CachingAllocator::remove_watcher(const Watcher* watcher) {
  for (const auto& allocator : devices_) allocator->state.observers.remove_watcher(watcher);
}

void CachingAllocator::record_history(const HistoryOptions& history) {
  for (const auto& allocator : devices()) allocator->state.observers.record_history(history);
}

bool CachingAllocator::history_enabled() const {
  for (const auto& allocator : devices()) {
    if (allocator->state.observers.history_enabled()) return true;
  }
  return false;
}

// --- private pools --------------------------------------------------------------------------------------------------

template <typename Action>
auto CachingAllocator::with_pool(int device, PoolId pool, Action action) const {
  DeviceAllocator& allocator = at(device);
  try {
    return action(allocator);
  } catch (const InvalidArgument& refusal) {
    for (Guard* guard : guards(device)) guard->report_released_pool(pool, refusal.what());
    throw;
  }
}

void CachingAllocator::create_or_retain_pool(int device, PoolId pool, std::shared_ptr<SegmentProvider> provider) {
  at(device).pools.create_or_retain_pool(pool, std::move(provider));
  for (Guard* guard : guards(device)) guard->note_users(pool);
}

void CachingAllocator::begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason) {
  DeviceAllocator& allocator = at(device);
  for (Guard* guard : guards(device)) guard->report_released_pool(pool, "begin_allocate_to_pool");
  allocator.pools.begin_allocate_to_pool(pool, std::move(filter), reason);
  for (Guard* guard : guards(device)) guard->note_users(pool);
}

// What gives back does nothing in a forked child, as frees: destructors call it.
void CachingAllocator::end_allocate_to_pool(int device, PoolId pool) {
  if (is_inherited()) return;
  with_pool(device, pool, [&](DeviceAllocator& allocator) { allocator.pools.end_allocate_to_pool(pool); });
}

void CachingAllocator::release_pool(int device, PoolId pool) {
  if (is_inherited()) return;
  with_pool(device, pool, [&](DeviceAllocator& allocator) { allocator.pools.release_pool(pool); });
  for (Guard* guard : guards(device)) guard->note_users(pool);
}

int CachingAllocator::pool_use_count(int device, PoolId pool) const { return at(device).pools.pool_use_count(pool); }
void CachingAllocator::set_use_on_oom(int device, PoolId pool, bool use_on_oom) {
  at(device).pools.set_use_on_oom(pool, use_on_oom);
}
void CachingAllocator::set_no_split(int device, PoolId pool) {
  with_pool(device, pool, [&](DeviceAllocator& allocator) { allocator.pools.set_no_split(pool); });
}

// What is in quarantine is no allocation of the pool, for the user.
bool CachingAllocator::pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const {
  if (!is_guarded()) return at(device).checkpoints.pool_has_exactly(pool, live);
  for (Guard* guard : guards(device)) guard->drain();
  const Guard& guard = *guards(device).front();
  std::vector<void*> in_heap;
  in_heap.reserve(live.size());
  for (const void* ptr : live) in_heap.push_back(as_pointer(guard.in_heap(as_address(ptr))));
  return with_pool(device, pool,
                   [&](DeviceAllocator& heap) { return heap.checkpoints.pool_has_exactly(pool, in_heap); });
}

PoolCheckpoint CachingAllocator::checkpoint_pool(int device, PoolId pool) const {
  for (Guard* guard : guards(device)) guard->drain();
  return with_pool(device, pool,
                   [&](DeviceAllocator& allocator) { return allocator.checkpoints.checkpoint_pool(pool); });
}

RestoreResult CachingAllocator::restore_pool(int device, const PoolCheckpoint& checkpoint) {
  return with_pool(device, checkpoint.pool, [&](DeviceAllocator& allocator) {
    return is_guarded() ? guards(device).front()->restore(checkpoint) : allocator.checkpoints.restore_pool(checkpoint);
  });
}

// --- sleep ----------------------------------------------------------------------------------------------------------

void CachingAllocator::begin_tagged(std::string_view tag, int device) {
  CACHALOT_REQUIRE(!tag.empty(), "begin_tagged: the tag is '{}'; it must not be empty", tag);
  const std::vector<DeviceAllocator*> allocators = selected(device);
  {
    const std::lock_guard<std::mutex> lock(tags_mutex_);
    tags_.try_emplace(std::string(tag), tags_.size() + 1);
  }
  const PoolId pool = pool_of_tag(tag);
  for (DeviceAllocator* allocator : allocators) allocator->pools.begin_tagged(pool, tag);
}

void CachingAllocator::end_tagged(std::string_view tag, int device) {
  const PoolId pool = pool_of_tag(tag);
  for (DeviceAllocator* allocator : selected(device)) allocator->pools.end_tagged(pool, tag);
}

PoolId CachingAllocator::pool_of_tag(std::string_view tag) const {
  require_own_process();
  const std::lock_guard<std::mutex> lock(tags_mutex_);
  const auto found = tags_.find(tag);
  CACHALOT_REQUIRE(found != tags_.end(), "no memory was ever tagged '{}'", tag);
  return {found->second, found->second};
}

std::vector<TagMemory> CachingAllocator::tags() const {
  require_own_process();
  std::map<std::string, PoolId> pools;
  {
    const std::lock_guard<std::mutex> lock(tags_mutex_);
    for (const auto& [tag, number] : tags_) pools.emplace(tag, PoolId{number, number});
  }
  std::vector<TagMemory> result;
  for (const auto& [tag, pool] : pools) {
    for (const auto& allocator : devices()) {
      std::optional<TagMemory> memory = allocator->inspection.tag_memory(pool);
      if (!memory || (!memory->is_asleep && memory->reserved_bytes == 0)) continue;
      memory->tag = tag;
      memory->device = allocator->state.index;
      result.push_back(*std::move(memory));
    }
  }
  return result;
}

void CachingAllocator::release_physical(std::string_view tag, bool save, int device) {
  const std::vector<DeviceAllocator*> allocators = selected(device);
  for (const DeviceAllocator* allocator : allocators) allocator->sleeping.require_pages("release_physical");
  const PoolId pool = pool_of_tag(tag);
  for (DeviceAllocator* allocator : allocators) allocator->pools.create_tag(pool, tag);
  release_physical(pool, save, device);
}

void CachingAllocator::restore_physical(std::string_view tag, int device) {
  for (const DeviceAllocator* allocator : selected(device)) allocator->sleeping.require_pages("restore_physical");
  const PoolId pool = pool_of_tag(tag);
  wake(sleepers(pool, device, "restore_physical"), pool);
}

void CachingAllocator::release_physical(PoolId pool, bool save, int device) {
  const std::vector<DeviceAllocator*> allocators = sleepers(pool, device, "release_physical");
  CACHALOT_REQUIRE(!allocators.empty(), "release_physical: there is no pool ({}, {})", pool.first, pool.second);
  tell_after([&] {
    for (DeviceAllocator* allocator : allocators) {
      const auto release = [&] { allocator->sleeping.release_physical(pool, save); };
      if (!is_guarded()) release();
      for (Guard* guard : guards(allocator->state.index)) guard->put_to_sleep(release);
    }
  });
}

void CachingAllocator::restore_physical(PoolId pool, int device) {
  const std::vector<DeviceAllocator*> allocators = sleepers(pool, device, "restore_physical");
  CACHALOT_REQUIRE(!allocators.empty(), "restore_physical: there is no pool ({}, {})", pool.first, pool.second);
  wake(allocators, pool);
}

void CachingAllocator::wake(const std::vector<DeviceAllocator*>& allocators, PoolId pool) {
  tell_after([&] {
    for (DeviceAllocator* allocator : allocators) {
      for (Guard* guard : guards(allocator->state.index)) guard->drain();
      allocator->sleeping.restore_physical(pool);
      for (Guard* guard : guards(allocator->state.index)) guard->wake();
    }
  });
}

// Those that have the pool. Refuses before any of them has done anything.
std::vector<DeviceAllocator*> CachingAllocator::sleepers(PoolId pool, int device, const char* call) const {
  std::vector<DeviceAllocator*> allocators = selected(device);
  std::erase_if(allocators,
                [&](const DeviceAllocator* allocator) { return !allocator->sleeping.may_sleep(pool, call); });
  return allocators;
}

}  // namespace cachalot
