#include "cachalot/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <optional>
#include <utility>

#include "api/allocator_state.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/process.h"
#include "device/addresses.h"
#include "heap/observers.h"

CACHALOT_BEGIN

static_assert(kUsualAlignment == kBlockGranularity);

// The members of a ForkGuard are a base of it, and so made before ForkAware registers it: a child may be forked at any
// time.
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

using PointerUse = Front::PointerUse;

// Frees an address that is not an allocation of `device` through a block; `of_other` is another device's block.
[[gnu::noinline]] void deallocate_elsewhere(AllocatorState& state, Block* of_other, void* ptr, int device) {
  if (of_other != nullptr && sizes(state.owner_of(*of_other).state, *of_other, ptr)) {
    throw InvalidArgument(
        formatted("{} is an allocation of device {}, not of device {}", ptr, BlockSlab::owner_of(*of_other), device));
  }
  state.front().deallocate(ptr);
}

}  // namespace

CachingAllocator::CachingAllocator(std::vector<std::shared_ptr<Device>> devices, const Options& options,
                                   const FrontFactory& guard)
    : CachingAllocator(*std::make_unique<AllocatorState>(std::move(devices), options, guard).release()) {}

CachingAllocator::CachingAllocator(AllocatorState& state)
    : AllocatorFigures(state),
      AllocatorSettings(state),
      AllocatorLimits(state),
      AllocatorObservers(state),
      AllocatorPools(state),
      AllocatorSleep(state),
      AllocatorSharing(state),
      state_(&state),
      unguarded_map_(state.front().opens_fast_paths() ? &state.page_map() : &no_blocks()),
      fork_guard_(std::make_unique<ForkGuard>(ForkGuardParts{*this, no_blocks()})) {
  if (!state.front().opens_fast_paths()) return;
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
  return state_->front().allocate({bytes, device, stream, {}});
}

void* CachingAllocator::allocate(std::size_t bytes, int device, Stream stream, const AllocateOptions& options) {
  const auto [contiguous, alignment, plain] = options;
  CACHALOT_REQUIRE(std::has_single_bit(alignment) && alignment <= kMaxAlignment,
                   "an alignment of {} bytes: it must be a power of two from 1 to {} (2 MiB)", alignment,
                   kMaxAlignment);
  return state_->front().allocate(
      {bytes, device, stream, {contiguous, plain, {}, {.bytes = std::max(alignment, kUsualAlignment)}}});
}

void* CachingAllocator::allocate_at(std::size_t bytes, int device, Stream stream, void* address) {
  return state_->front().allocate_at(bytes, device, stream, address);
}

void* CachingAllocator::allocate_plain_beside(const void* ptr) {
  const auto [block, start] = state_->front().find(ptr);
  const auto origin =
      block != nullptr ? state_->owner_of(*block).sharing.origin(*block, start) : std::optional<BlockOrigin>();
  const auto bytes = state_->front().requested_bytes(ptr);
  if (!origin || !bytes) throw state_->front().not_live(ptr, PointerUse::other);
  if (origin->is_plain) return nullptr;
  void* const plain = state_->front().allocate(
      {*bytes, BlockSlab::owner_of(*block), origin->stream, {.plain = true, .owner = origin->owner, .alignment = {}}});
  try {
    for (const Stream stream : origin->recorded) record_stream(plain, stream);
  } catch (...) {
    deallocate(plain);
    throw;
  }
  return plain;
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

void CachingAllocator::deallocate_outside_heaps(void* ptr) { state_->front().deallocate(ptr); }

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

// Also called for an invalid device index.
void CachingAllocator::deallocate_outside_heaps(void* ptr, std::size_t bytes, int device, Stream stream) {
  state_->front().deallocate(ptr, {.bytes = bytes, .device = device, .stream = stream});
}

void CachingAllocator::deallocate_when_possible(void* ptr) noexcept {
  const auto free_later = [&] {
    const bool is_first = state_->late_frees.add(ptr);
    if (is_first) add_free_memory_callback([this] { return finish_late_frees(); });
  };
  try {
    state_->front().run_without_handlers_errors([&] { deallocate(ptr); });
  } catch (const CudaError&) {
    free_later();
  } catch (const std::bad_alloc&) {
    free_later();
  } catch (...) {  // a caller's mistake, which handlers have been told
    std::terminate();
  }
}

// Returns whether anything was freed.
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
  if (ptr != nullptr) state_->front().record_stream(ptr, stream);
}

void CachingAllocator::stream_ends(Stream stream) {
  for (const auto& device : state_->devices()) device->streams.stream_ends(stream);
  state_->front().stream_ends(stream);
}

CachingAllocator::Range CachingAllocator::base_allocation(void* ptr) const {
  if (const auto [block, start] = state_->front().find(ptr); block != nullptr) {
    if (const auto segment = cachalot::base_allocation(state_->owner_of(*block).state, *block, start)) {
      return {as_pointer(segment->address), segment->bytes};
    }
  }
  throw state_->front().not_live(ptr, PointerUse::other);
}

std::size_t CachingAllocator::requested_size(void* ptr) const {
  if (const auto bytes = state_->front().requested_bytes(ptr)) return *bytes;
  throw state_->front().not_live(ptr, PointerUse::other);
}

std::size_t CachingAllocator::allocated_size(void* ptr) const {
  if (const auto [block, start] = state_->front().find(ptr); block != nullptr) {
    if (const auto sizes = cachalot::sizes(state_->owner_of(*block).state, *block, start)) return sizes->allocated;
  }
  throw state_->front().not_live(ptr, PointerUse::other);
}

int CachingAllocator::device_of(const void* ptr) const {
  const auto [block, start] = state_->front().find(ptr);
  if (block != nullptr && sizes(state_->owner_of(*block).state, *block, start)) return BlockSlab::owner_of(*block);
  for (const auto& allocator : state_->devices_if_own()) {
    if (allocator->uncached.contains(start)) return allocator->state.index;
  }
  return -1;
}

void CachingAllocator::empty_cache(int device, PoolId pool) {
  state_->front().run([&] {
    finish_late_frees();
    state_->front().drain(device);
    for (const auto& allocator : state_->selected(device)) {
      const SlowWorkRange range(allocator->state.observers.slow_work_observer(),
                                {SlowWork::Kind::empty_cache, allocator->state.index});
      allocator->recovery.empty_cache(pool, allocator->caches);
    }
  });
}

void CachingAllocator::drain_thread_caches(int device) {
  for (const auto& allocator : state_->selected(device)) allocator->caches.drain();
}

CACHALOT_END
