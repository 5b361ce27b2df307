// CachingAllocator with the guard on: each device's guard stands before its allocator; fast paths know of neither.
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "cachalot/caching_allocator.h"
#include "device/addresses.h"
#include "device_allocator.h"
#include "guard/guard.h"

namespace cachalot {

namespace {

using Kind = GuardReport::Kind;

// What the use of an address is that is no live allocation.
Kind kind_of(bool is_free, const std::optional<Guard::Sighting>& sighting) {
  const bool was_freed = sighting && sighting->block.freed;
  if (is_free) return was_freed && sighting->offset() == 0 ? Kind::double_free : Kind::invalid_free;
  return was_freed ? Kind::use_after_free : Kind::invalid_use;
}

}  // namespace

void CachingAllocator::set_up_guard(const KernelsFactory& kernels) {
  CACHALOT_REQUIRE(kernels, "the factory of kernels is empty; the guard needs one, as host_kernels");
  unguarded_map_ = &no_blocks();
  guard_log_ = std::make_unique<GuardLog>();
  const Guard::Duties duties{.canaries = has_guard(options_), .debug = options_.debug};
  for (const auto& allocator : devices_) {
    guards_.push_back(std::make_unique<Guard>(*allocator, *page_map_, duties, kernels, *guard_log_));
    guards_.back()->set_quarantine(options_.guard_quarantine);
  }
}

// Comes here for a device that there is not, too.
void* CachingAllocator::allocate_guarded(std::size_t bytes, int device, Stream stream, bool contiguous) {
  at(device);
  return guards_[static_cast<std::size_t>(device)]->allocate(bytes, stream, contiguous);
}

void CachingAllocator::deallocate_guarded(void* ptr) {
  for (const auto& guard : guards_) {
    if (guard->deallocate(ptr)) return;
  }
  throw_not_live(ptr, PointerUse::free);
}

void CachingAllocator::deallocate_guarded(void* ptr, int device, std::size_t bytes, Stream stream) {
  const auto claimed = static_cast<std::size_t>(device);
  for (std::size_t i = 0; i < guards_.size(); ++i) {
    if (i == claimed || !guards_[i]->requested(ptr)) continue;
    const std::string message = formatted("{} is an allocation of device {}, not of device {}", ptr, i, device);
    guards_[i]->report_mistake(Kind::wrong_device, ptr, message);
    throw InvalidArgument(message);
  }
  if (!guards_[claimed]->deallocate(ptr, Guard::Claim{bytes, stream})) throw_not_live(ptr, PointerUse::free);
}

// With what the guards know of the address, else with what the heaps do.
void CachingAllocator::throw_not_live(const void* ptr, PointerUse use) const {
  std::optional<Guard::Sighting> sighting;
  std::string place;
  std::size_t owner = 0;
  for (std::size_t i = 0; i < guards_.size() && place.empty(); ++i) {
    sighting = guards_[i]->sight(ptr);
    if (sighting) place = sighting->place();
    owner = i;
  }
  for (std::size_t i = 0; i < devices_.size() && place.empty(); ++i) {
    place = describe(devices_[i]->state, ptr);
    owner = i;
  }
  if (place.empty()) place = "this allocator does not hold it";
  const std::string message = formatted("invalid device pointer: {} is not a live allocation: {}", ptr, place);
  if (is_guarded()) guards_[owner]->report_mistake(kind_of(use == PointerUse::free, sighting), ptr, message);
  throw InvalidArgument(sighting ? formatted("{} ({})", message, sighting->history()) : message);
}

CachingAllocator::Found CachingAllocator::find(const void* ptr) const {
  require_own_process();
  if (!is_guarded()) return {page_map_->find(as_address(ptr)), ptr};
  for (const auto& guard : guards_) {
    if (!guard->requested(ptr)) continue;
    const Address start = guard->in_heap(as_address(ptr));
    return {page_map_->find(start), as_pointer(start)};
  }
  return {nullptr, ptr};
}

std::vector<Guard*> CachingAllocator::guards(int device) const {
  require_own_process();
  std::vector<Guard*> chosen;
  for (std::size_t i = 0; i < guards_.size(); ++i) {
    if (device == kAllDevices || device == static_cast<int>(i)) chosen.push_back(guards_[i].get());
  }
  return chosen;
}

void CachingAllocator::set_guard_handler(GuardHandler handler) {
  require_own_process();
  if (is_guarded()) guard_log_->set_handler(std::move(handler));
}

std::uint64_t CachingAllocator::guard_reports() const {
  require_own_process();
  return is_guarded() ? guard_log_->count() : 0;
}

std::vector<GuardReport> CachingAllocator::check_guard() {
  require_own_process();
  CACHALOT_REQUIRE(is_guarded(),
                   "check_guard: the guard is off; guard:True or debug:True turns it on when the allocator is made");
  guard_log_->tell_after([this] {
    for (const auto& guard : guards_) guard->check();
  });
  return guard_log_->take();
}

std::size_t CachingAllocator::guard_quarantine_bytes(int device) const {
  at(device);
  return is_guarded() ? guards_[static_cast<std::size_t>(device)]->quarantine_bytes() : 0;
}

}  // namespace cachalot
