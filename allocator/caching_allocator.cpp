#include "cachalot/caching_allocator.h"

#include <bit>
#include <exception>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/process.h"
#include "device/addresses.h"
#include "groups/allocator_state.h"
#include "heap/observers.h"

CACHALOT_BEGIN

static_assert(kUsualAlignment == kBlockGranularity);

// What a ForkGuard has is a base of it, and so made before ForkAware tells of it: a child may be forked at any time.
struct ForkGuardParts {
  CachingAllocator& allocator;
  const PageMap&
      none;  // of no blocks; not made in the child, which would wait for a thread of the parent that makes it
};

// Empties the fast paths' view in a forked child.
class CachingAllocator::ForkGuard final : private ForkGuardParts, public ForkAware {
 public:
  explicit ForkGuard(const ForkGuardParts& parts) : ForkGuardParts(parts) {}

 private:
  void on_fork() noexcept override {
    allocator.unguarded_map_ = &none;
    allocator.unguarded_devices_.clear();
  }
};

namespace {

using PointerUse = AllocatorState::PointerUse;

bool record_use(DeviceAllocator& device, Block& block, const void* ptr, Stream stream) {
  return device.fast.record_stream(block, ptr, device.streams.identify(stream));
}

// What is not an allocation of `device` through a block; `of_other` is another device's block.
[[gnu::noinline]] void deallocate_elsewhere(AllocatorState& state, Block* of_other, void* ptr, int device) {
  if (of_other != nullptr && sizes(state.owner_of(*of_other).state, *of_other, ptr)) {
    throw InvalidArgument(
        formatted("{} is an allocation of device {}, not of device {}", ptr, BlockSlab::owner_of(*of_other), device));
  }
  state.deallocate_uncached(ptr);
}

}  // namespace

CachingAllocator::CachingAllocator(std::vector<std::shared_ptr<Device>> devices, const Options& options,
                                   const KernelsFactory& kernels)
    : CachingAllocator(*std::make_unique<AllocatorState>(std::move(devices), options, kernels).release()) {}

CachingAllocator::CachingAllocator(AllocatorState& state)
    : AllocatorFigures(state),
      AllocatorSettings(state),
      AllocatorLimits(state),
      AllocatorObservers(state),
      AllocatorPools(state),
      AllocatorSleep(state),
      AllocatorSharing(state),
      AllocatorGuard(state),
      state_(&state),
      unguarded_map_(state.is_guarded() ? &no_blocks() : &state.page_map()),
      fork_guard_(std::make_unique<ForkGuard>(ForkGuardParts{*this, no_blocks()})) {
  if (state.is_guarded()) return;
  for (const auto& allocator : state.devices()) unguarded_devices_.push_back(allocator.get());
}

// In a forked child what the parent has stays as it is.
CachingAllocator::~CachingAllocator() {
  life_.reset();
  if (is_inherited()) static_cast<void>(state_.release());
  state_.reset();
}

const PageMap& CachingAllocator::no_blocks() {
  static const PageMap& none = *new PageMap;
  return none;
}

bool CachingAllocator::is_inherited() const { return state_->is_inherited(); }
int CachingAllocator::device_count() const { return static_cast<int>(state_->devices_if_own().size()); }
const std::shared_ptr<Device>& CachingAllocator::device(int index) const { return state_->at(index).state.device; }

// --- malloc and free ------------------------------------------------------------------------------------------------

void* CachingAllocator::allocate(std::size_t bytes, int device, Stream stream) {
  if (static_cast<unsigned>(device) >= unguarded_devices_.size()) [[unlikely]]
    return allocate_outside_heaps(bytes, device, stream);
  return unguarded_devices_[static_cast<std::size_t>(device)]->fast.allocate(bytes, stream);
}

void* CachingAllocator::allocate_outside_heaps(std::size_t bytes, int device, Stream stream) {
  return state_->allocate_guarded(bytes, device, stream, /*contiguous=*/false, kBlockGranularity);
}

void* CachingAllocator::allocate(std::size_t bytes, int device, Stream stream, const AllocateOptions& options) {
  const auto [contiguous, alignment] = options;
  CACHALOT_REQUIRE(std::has_single_bit(alignment) && alignment <= kMaxAlignment,
                   "an alignment of {} bytes: it must be a power of two from 1 to {} (2 MiB)", alignment,
                   kMaxAlignment);
  if (state_->is_guarded()) return state_->allocate_guarded(bytes, device, stream, contiguous, alignment);
  FastPath& fast = state_->at(device).fast;
  return contiguous || alignment > kBlockGranularity
             ? fast.allocate_placed(bytes, stream, contiguous, Alignment{.bytes = alignment})
             : fast.allocate(bytes, stream);
}

void* CachingAllocator::allocate_at(std::size_t bytes, int device, Stream stream, void* address) {
  FastPath& fast = state_->at(device).fast;
  CACHALOT_REQUIRE(!state_->is_guarded(), "allocate_at: with the guard on, no allocation has a given address");
  return fast.allocate_at(bytes, stream, as_address(address));
}

DeviceAllocator& CachingAllocator::owner_of(const Block& block) const {
  // Spares the usual case four loads that wait for each other.
  if (unguarded_devices_.size() == 1) return *unguarded_devices_[0];
  return *unguarded_devices_[static_cast<std::size_t>(BlockSlab::owner_of(block))];
}

void CachingAllocator::deallocate(void* ptr) {
  if (ptr == nullptr) return;
  Block* block = unguarded_map_->find(as_address(ptr));
  if (block == nullptr || !owner_of(*block).fast.deallocate(*block, ptr)) [[unlikely]]
    deallocate_outside_heaps(ptr);
}

void CachingAllocator::deallocate_outside_heaps(void* ptr) {
  if (state_->is_guarded()) return state_->deallocate_guarded(ptr);
  state_->deallocate_uncached(ptr);
}

void CachingAllocator::deallocate(void* ptr, std::size_t bytes, int device, Stream stream) {
  if (static_cast<unsigned>(device) >= unguarded_devices_.size()) [[unlikely]]
    return deallocate_outside_heaps(ptr, bytes, device, stream);
  DeviceAllocator& expected = *unguarded_devices_[static_cast<std::size_t>(device)];
  if (ptr == nullptr) return;
  Block* block = unguarded_map_->find(as_address(ptr));
  const bool is_there = block != nullptr && &owner_of(*block) == &expected;
  if (!is_there || !expected.fast.deallocate(*block, ptr, bytes, stream)) [[unlikely]]
    deallocate_elsewhere(*state_, is_there ? nullptr : block, ptr, device);
}

// Comes here for a device that there is not, too.
void CachingAllocator::deallocate_outside_heaps(void* ptr, std::size_t bytes, int device, Stream stream) {
  if (is_inherited()) return;
  state_->at(device);
  if (ptr != nullptr) state_->deallocate_guarded(ptr, device, bytes, stream);
}

void CachingAllocator::deallocate_when_possible(void* ptr) noexcept {
  std::optional<GuardLog::Batch> heard;  // at its end, and nobody to throw to
  if (state_->is_guarded()) heard.emplace(state_->guard_log());
  const auto free_later = [&] {
    const bool is_first = state_->late_frees.add(ptr);
    if (is_first) add_free_memory_callback([this] { return finish_late_frees(); });
  };
  try {
    deallocate(ptr);
  } catch (const CudaError&) {
    free_later();
  } catch (const std::bad_alloc&) {
    free_later();
  } catch (...) {  // a caller's mistake: it is told before all ends
    heard.reset();
    std::terminate();
  }
}

// Whether anything was freed.
bool CachingAllocator::finish_late_frees() {
  return state_->late_frees.retry([this](void* ptr) {
    try {
      deallocate(ptr);
      return true;
    } catch (const InvalidArgument&) {  // restore_pool has freed it meanwhile
      return true;
    } catch (...) {
      return false;
    }
  });
}

void CachingAllocator::record_stream(void* ptr, Stream stream) {
  if (ptr == nullptr) return;
  state_->require_own_process();
  for (const auto& guard : state_->guards()) {
    if (guard->record_stream(ptr, stream)) return;
  }
  const auto [block, start] = state_->find(ptr);
  if (block == nullptr || !record_use(state_->owner_of(*block), *block, start, stream)) {
    state_->throw_not_live(ptr, PointerUse::other);
  }
}

void CachingAllocator::stream_ends(Stream stream) {
  state_->require_own_process();
  for (const auto& device : state_->devices_if_own()) device->streams.stream_ends(stream);
  for (const auto& guard : state_->guards()) guard->stream_ends(stream);
}

CachingAllocator::Range CachingAllocator::base_allocation(void* ptr) const {
  if (const auto [block, start] = state_->find(ptr); block != nullptr) {
    if (const auto segment = cachalot::base_allocation(state_->owner_of(*block).state, *block, start)) {
      return {as_pointer(segment->address), segment->bytes};
    }
  }
  state_->throw_not_live(ptr, PointerUse::other);
}

std::size_t CachingAllocator::requested_size(void* ptr) const {
  for (const auto& guard : state_->guards()) {
    if (const auto bytes = guard->requested(ptr)) return *bytes;
  }
  if (const auto [block, start] = state_->find(ptr); block != nullptr) {
    if (const auto sizes = cachalot::sizes(state_->owner_of(*block).state, *block, start)) return sizes->requested;
  }
  state_->throw_not_live(ptr, PointerUse::other);
}

std::size_t CachingAllocator::allocated_size(void* ptr) const {
  if (const auto [block, start] = state_->find(ptr); block != nullptr) {
    if (const auto sizes = cachalot::sizes(state_->owner_of(*block).state, *block, start)) return sizes->allocated;
  }
  state_->throw_not_live(ptr, PointerUse::other);
}

int CachingAllocator::device_of(const void* ptr) const {
  const auto [block, start] = state_->find(ptr);
  if (block != nullptr && sizes(state_->owner_of(*block).state, *block, start)) return BlockSlab::owner_of(*block);
  for (const auto& allocator : state_->devices_if_own()) {
    if (allocator->uncached.contains(start)) return allocator->state.index;
  }
  return -1;
}

void CachingAllocator::empty_cache(int device, PoolId pool) {
  state_->require_own_process();
  state_->tell_after([&] {
    finish_late_frees();
    for (const auto& guard : state_->guards(device)) guard->drain();
    for (const auto& allocator : state_->selected(device)) {
      const SlowWorkRange range(allocator->state.observers.slow_work_observer(),
                                {SlowWork::Kind::empty_cache, allocator->state.index});
      allocator->recovery.empty_cache(pool, allocator->caches);
    }
  });
}

bool CachingAllocator::tidy(int device) {
  state_->require_own_process();
  bool has_tidied = false;
  for (const auto& allocator : state_->selected(device)) {
    PageGrowth* const pages = allocator->growths.pages();
    has_tidied = (pages != nullptr && pages->exchange().tidy() == HandleExchange::Step::exchanged) || has_tidied;
  }
  return has_tidied;
}

void CachingAllocator::drain_thread_caches(int device) {
  for (const auto& allocator : state_->selected(device)) allocator->caches.drain();
}

CACHALOT_END
