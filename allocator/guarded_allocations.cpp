// CachingAllocator with the guard on: each device's guard stands before its allocator; fast paths know of neither.
#include <utility>

#include "base/check.h"
#include "cachalot/caching_allocator.h"
#include "device_allocator.h"
#include "guard/guard.h"

namespace cachalot {

namespace {

Address as_address(const void* ptr) { return reinterpret_cast<Address>(ptr); }

}  // namespace

void CachingAllocator::set_up_guard(KernelsFactory kernels) {
  CACHALOT_REQUIRE(kernels, "the factory of kernels is empty; the guard needs one, as host_kernels");
  nothing_ = std::make_unique<PageMap>();
  open_map_ = nothing_.get();
  guard_log_ = std::make_unique<GuardLog>();
  for (const auto& allocator : devices_) {
    guards_.push_back(std::make_unique<Guard>(*allocator, *page_map_, kernels, *guard_log_));
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
  throw_not_live(ptr);
}

void CachingAllocator::deallocate_guarded(void* ptr, int device, std::size_t bytes, Stream stream) {
  for (std::size_t i = 0; i < guards_.size(); ++i) {
    CACHALOT_REQUIRE(i == static_cast<std::size_t>(device) || !guards_[i]->requested(ptr),
                     "{} is an allocation of device {}, not of device {}", ptr, i, device);
  }
  if (!guards_[static_cast<std::size_t>(device)]->deallocate(ptr, Guard::Claim{bytes, stream})) throw_not_live(ptr);
}

CachingAllocator::Found CachingAllocator::find(const void* ptr) const {
  if (!is_guarded()) return {page_map_->find(as_address(ptr)), ptr};
  for (const auto& guard : guards_) {
    if (!guard->requested(ptr)) continue;
    const Address start = Guard::in_heap(as_address(ptr));
    return {page_map_->find(start), reinterpret_cast<const void*>(start)};
  }
  return {nullptr, ptr};
}

std::vector<Guard*> CachingAllocator::guards(int device) const {
  std::vector<Guard*> chosen;
  for (std::size_t i = 0; i < guards_.size(); ++i) {
    if (device == kAllDevices || device == static_cast<int>(i)) chosen.push_back(guards_[i].get());
  }
  return chosen;
}

void CachingAllocator::set_guard_handler(GuardHandler handler) {
  if (is_guarded()) guard_log_->set_handler(std::move(handler));
}

std::uint64_t CachingAllocator::guard_reports() const { return is_guarded() ? guard_log_->count() : 0; }

std::vector<GuardReport> CachingAllocator::check_guard() {
  CACHALOT_REQUIRE(is_guarded(), "check_guard: the guard is off; guard:True turns it on when the allocator is made");
  for (const auto& guard : guards_) guard->check();
  return guard_log_->take();
}

std::size_t CachingAllocator::guard_quarantine_bytes(int device) const {
  at(device);
  return is_guarded() ? guards_[static_cast<std::size_t>(device)]->quarantine_bytes() : 0;
}

}  // namespace cachalot
