#include "groups/allocator_state.h"

#include <optional>

#include "base/check.h"
#include "base/format.h"
#include "cachalot/allocator_group.h"
#include "device/addresses.h"

CACHALOT_BEGIN

PoolId Tags::make(std::string_view tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t number = numbers_.try_emplace(std::string(tag), numbers_.size() + 1).first->second;
  return {number, number};
}

PoolId Tags::pool_of(std::string_view tag) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = numbers_.find(tag);
  CACHALOT_REQUIRE(found != numbers_.end(), "no memory was ever tagged '{}'", tag);
  return {found->second, found->second};
}

std::map<std::string, PoolId> Tags::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, PoolId> pools;
  for (const auto& [tag, number] : numbers_) pools.emplace(tag, PoolId{number, number});
  return pools;
}

AllocatorState::AllocatorState(std::vector<std::shared_ptr<Device>> devices, const Options& wanted,
                               const KernelsFactory& kernels)
    : options(wanted) {
  own_.page_map = std::make_unique<PageMap>();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    CACHALOT_REQUIRE(devices[i] != nullptr, "device {} is null", i);
    CACHALOT_REQUIRE(devices[i]->index() == static_cast<int>(i), "device {} says its index is {}", i,
                     devices[i]->index());
    own_.devices.push_back(std::make_unique<DeviceAllocator>(std::move(devices[i]), *own_.page_map, wanted));
  }
  if (has_guard(wanted) || wanted.debug) set_up_guard(kernels);
}

const AllocatorState::DeviceAllocators& AllocatorState::devices() const {
  require_own_process();
  return own_.devices;
}

DeviceAllocator& AllocatorState::at(int device) const {
  if (static_cast<unsigned>(device) >= own_.devices.size()) [[unlikely]]
    refuse_device(device);
  return *own_.devices[static_cast<std::size_t>(device)];
}

void AllocatorState::refuse_device(int device) const {
  require_own_process();
  const std::size_t count = own_.devices.size();
  CACHALOT_REQUIRE(count != 0,
                   "device {}: no GPU was found. The allocator was made without devices, and cuda_devices() is empty "
                   "without an NVIDIA driver or in a build without CUDA. Use a SimulatedDevice "
                   "(cachalot/simulated_device.h), or run the program under `cachalot simulate`",
                   device);
  throw InvalidArgument(
      formatted("device {} is not one of the {} devices (0 to {})", device, count, static_cast<int>(count) - 1));
}

std::span<const std::unique_ptr<DeviceAllocator>> AllocatorState::selected(int device) const {
  if (device == kAllDevices) return devices();
  at(device);
  return std::span(own_.devices).subspan(static_cast<std::size_t>(device), 1);
}

DeviceAllocator& AllocatorState::owner_of(const Block& block) const {
  return *own_.devices[static_cast<std::size_t>(BlockSlab::owner_of(block))];
}

Options AllocatorState::current_options() const {
  require_own_process();
  const std::lock_guard<std::mutex> lock(options_mutex);
  return options;
}

void AllocatorState::deallocate_uncached(void* ptr) {
  if (is_inherited()) return;
  for (const auto& allocator : own_.devices) {
    if (allocator->uncached.deallocate(ptr)) return;
  }
  throw_not_live(ptr, PointerUse::free);
}

// The allocator with the guard on: each device's guard stands before its allocator; fast paths know of neither.

namespace {

using Kind = GuardReport::Kind;

// What the use of an address is that is no live allocation.
Kind kind_of(bool is_free, const std::optional<Guard::Sighting>& sighting) {
  const bool was_freed = sighting && sighting->block.freed;
  if (is_free) return was_freed && sighting->offset() == 0 ? Kind::double_free : Kind::invalid_free;
  return was_freed ? Kind::use_after_free : Kind::invalid_use;
}

}  // namespace

void AllocatorState::set_up_guard(const KernelsFactory& kernels) {
  CACHALOT_REQUIRE(kernels, "the factory of kernels is empty; the guard needs one, as host_kernels");
  own_.guard_log = std::make_unique<GuardLog>();
  const Guard::Duties duties{.canaries = has_guard(options), .debug = options.debug};
  for (const auto& allocator : own_.devices) {
    own_.guards.push_back(std::make_unique<Guard>(*allocator, *own_.page_map, duties, kernels, *own_.guard_log));
  }
}

// Comes here for a device that there is not, too.
void* AllocatorState::allocate_guarded(std::size_t bytes, int device, Stream stream, bool contiguous,
                                       std::size_t alignment) {
  at(device);
  return own_.guards[static_cast<std::size_t>(device)]->allocate(bytes, stream, contiguous, alignment);
}

void AllocatorState::deallocate_guarded(void* ptr) {
  for (const auto& guard : own_.guards) {
    if (guard->deallocate(ptr)) return;
  }
  throw_not_live(ptr, PointerUse::free);
}

void AllocatorState::deallocate_guarded(void* ptr, int device, std::size_t bytes, Stream stream) {
  const auto claimed = static_cast<std::size_t>(device);
  for (std::size_t i = 0; i < own_.guards.size(); ++i) {
    if (i == claimed || !own_.guards[i]->requested(ptr)) continue;
    const std::string message = formatted("{} is an allocation of device {}, not of device {}", ptr, i, device);
    own_.guards[i]->report_mistake(Kind::wrong_device, ptr, message);
    throw InvalidArgument(message);
  }
  if (!own_.guards[claimed]->deallocate(ptr, Guard::Claim{bytes, stream})) throw_not_live(ptr, PointerUse::free);
}

// With what the guards know of the address, else with what the heaps do.
void AllocatorState::throw_not_live(const void* ptr, PointerUse use) const {
  std::optional<Guard::Sighting> sighting;
  std::string place;
  std::size_t owner = 0;
  for (std::size_t i = 0; i < own_.guards.size() && place.empty(); ++i) {
    sighting = own_.guards[i]->sight(ptr);
    if (sighting) place = sighting->place();
    owner = i;
  }
  for (std::size_t i = 0; i < own_.devices.size() && place.empty(); ++i) {
    place = describe(own_.devices[i]->state, ptr);
    owner = i;
  }
  if (place.empty()) place = "this allocator does not hold it";
  const std::string message = formatted("invalid device pointer: {} is not a live allocation: {}", ptr, place);
  if (is_guarded()) own_.guards[owner]->report_mistake(kind_of(use == PointerUse::free, sighting), ptr, message);
  throw InvalidArgument(sighting ? formatted("{} ({})", message, sighting->history()) : message);
}

AllocatorState::Found AllocatorState::find(const void* ptr) const {
  require_own_process();
  if (!is_guarded()) return {own_.page_map->find(as_address(ptr)), ptr};
  for (const auto& guard : own_.guards) {
    if (!guard->requested(ptr)) continue;
    const Address start = guard->in_heap(as_address(ptr));
    return {own_.page_map->find(start), as_pointer(start)};
  }
  return {nullptr, ptr};
}

std::span<const std::unique_ptr<Guard>> AllocatorState::guards(int device) const {
  require_own_process();
  if (device == kAllDevices) return own_.guards;
  if (static_cast<unsigned>(device) >= own_.guards.size()) return {};
  return std::span(own_.guards).subspan(static_cast<std::size_t>(device), 1);
}

CACHALOT_END
