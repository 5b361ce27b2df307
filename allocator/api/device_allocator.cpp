#include "api/device_allocator.h"

#include <bit>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

namespace {

bool has_pages(const HeapState& state, const Options& options) {
  const DeviceProperties device = state.device->properties();
  if (!device.virtual_memory) {
    print_error("cachalot: GPU {} has no virtual memory management: heap:segments is used instead of heap:pages\n",
                state.index);
    return false;
  }
  CACHALOT_REQUIRE(std::has_single_bit(device.page_bytes), "GPU {} has pages of {} bytes: not a power of two",
                   state.index, device.page_bytes);
  CACHALOT_REQUIRE(options.page_size % device.page_bytes == 0, "page_size_mb:{}: GPU {} has pages of {} bytes",
                   options.page_size >> 20, state.index, device.page_bytes);
  return true;
}

bool has_managed_memory(const HeapState& state) {
  if (state.device->properties().managed_bytes != 0) return true;
  print_error(
      "cachalot: GPU {} has no managed memory with concurrent access: heap:segments is used instead of "
      "heap:managed\n",
      state.index);
  return false;
}

// Returns the kind that the option asks for, or segments, with a message, if the device lacks what that needs.
HeapKind kind_for(const HeapState& state, const Options& options) {
  const HeapKind wanted = selected_heap(options);
  if (wanted == HeapKind::pages && !has_pages(state, options)) return HeapKind::segments;
  if (wanted == HeapKind::managed && !has_managed_memory(state)) return HeapKind::segments;
  return wanted;
}

template <typename Strategy>
std::unique_ptr<Strategy> make_segments(HeapState& state, const PageGrowth::Parts& parts) {
  return std::make_unique<Strategy>(state, parts.clocks, parts.streams, parts.caches, parts.recovery);
}

}  // namespace

Growths::Growths(HeapState& state, const PageGrowth::Parts& parts, const Options& options)
    : kind_(kind_for(state, options)), segments_(make_segments<SegmentGrowth>(state, parts)), usual_(segments_.get()) {
  if (kind_ == HeapKind::async) other_segments_ = make_segments<AsyncGrowth>(state, parts);
  if (kind_ == HeapKind::managed) other_segments_ = make_segments<ManagedGrowth>(state, parts);
  if (other_segments_ != nullptr) usual_ = other_segments_.get();
  if (kind_ != HeapKind::pages) return;
  pages_ = std::make_unique<PageGrowth>(state, parts, state.device->properties().page_bytes);
  usual_ = pages_.get();
}

std::vector<const Growth*> Growths::all() const {
  std::vector<const Growth*> growths = {segments_.get()};
  if (other_segments_ != nullptr) growths.push_back(other_segments_.get());
  if (pages_ != nullptr) growths.push_back(pages_.get());
  return growths;
}

void Growths::give_back_everything() noexcept {
  if (pages_ != nullptr) pages_->give_back_everything();
  if (other_segments_ != nullptr) other_segments_->give_back_everything();
  segments_->give_back_everything();
}

namespace {

PageGrowth::Parts parts_of(DeviceAllocator& allocator) {
  return {allocator.pools,    allocator.clocks,  allocator.streams, allocator.caches,
          allocator.recovery, allocator.handles, allocator.saved};
}

}  // namespace

DeviceAllocator::DeviceAllocator(std::shared_ptr<Device> device, PageMap& page_map, const Options& options)
    : fast(std::move(device), page_map, options, slow),
      handles(*state.device),
      growths(state, parts_of(*this), options),
      sleeping(state, parts_of(*this), frees, pressure, supply, growths.pages(), growths.kind()),
      inspection({state, pools, caches, frees, sleeping, growths.all()}) {
  pools.set_growth(growths.of_pools());
  {
    const DeviceLock lock(state.mutex);
    for (BlockPool& pool : state.default_pools) {
      pool.growth = &growths.usual();
      pool.in_ranges = growths.pages() != nullptr;
    }
    for (BlockPool& pool : state.plain_pools) pool.growth = &growths.plain();
    state.counters.max_split_size =
        options.max_split_size == Options::kUnlimited ? -1 : as_signed(options.max_split_size);
  }
  if (growths.kind() == HeapKind::managed) uncached.use_managed_memory();
  apply(options);
  if (options.per_process_memory_fraction < 1)
    set_memory_fraction(options.per_process_memory_fraction, Limits::Setter::option);
  if (options.limit.base != MemoryLimit::Base::none) set_limit(options.limit, Limits::Setter::option);
}

// Requires: no other thread uses the allocator any more.
DeviceAllocator::~DeviceAllocator() {
  if (state.caches != nullptr) state.caches->forget_threads();
  state.caches.reset();
  {
    const DeviceLock lock(state.mutex);
    for (const auto& [id, pool] : pools.all(lock)) saved.forget_all(*pool, lock);
  }
  growths.give_back_everything();
}

void DeviceAllocator::apply(const Options& options) {
  const DeviceLock lock(state.mutex);
  state.options = options;
  pools.apply_split_rules(lock);
  state.rounds_by_divisions = rounds_by_divisions(options);
  pools.take_plain(options.plain, lock);
  caches.want_caches(options.thread_cache.value_or(growths.usual().caches_by_default()), lock);
  state.update_aging(lock);
}

void DeviceAllocator::set_memory_fraction(double fraction, Limits::Setter setter) {
  limits.set_fraction(fraction, setter);
}

void DeviceAllocator::set_limit(const MemoryLimit& limit, Limits::Setter setter) {
  limits.set(limit, setter);
  level.come_under_limit();
}

void DeviceAllocator::tell_if_crossed() {
  const DeviceLock lock(state.mutex);
  limits.tell_if_crossed(lock);
}

double DeviceAllocator::memory_fraction() const {
  const DeviceLock lock(state.mutex);
  return state.ledger.held_limit(lock).fraction();
}

CACHALOT_END
