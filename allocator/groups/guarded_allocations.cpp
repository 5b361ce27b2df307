// The allocator with the guard on: each device's guard stands before its allocator; fast paths know of neither.
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "cachalot/allocator_group.h"
#include "device/addresses.h"
#include "groups/allocator_state.h"

CACHALOT_BEGIN

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

std::vector<Guard*> AllocatorState::guards(int device) const {
  require_own_process();
  std::vector<Guard*> chosen;
  for (std::size_t i = 0; i < own_.guards.size(); ++i) {
    if (device == kAllDevices || device == static_cast<int>(i)) chosen.push_back(own_.guards[i].get());
  }
  return chosen;
}

CACHALOT_END
