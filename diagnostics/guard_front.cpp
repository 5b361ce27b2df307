// GuardFront is the front of an allocator with guard:True or debug:True: each device has a guard before its heap.
//
// Thread safety: any thread.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/allocator_state.h"
#include "api/front.h"
#include "base/check.h"
#include "base/format.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/guard.h"
#include "cachalot/kernels.h"
#include "device/addresses.h"
#include "diagnostics/device_guard.h"
#include "diagnostics/guard_reports.h"

CACHALOT_BEGIN

namespace {

using Kind = GuardReport::Kind;

// Returns the kind of mistake that the use of an address is where no live allocation begins.
Kind kind_of(bool is_free, const std::optional<DeviceGuard::Sighting>& sighting) {
  const bool was_freed = sighting && sighting->block.freed;
  if (is_free) return was_freed && sighting->offset() == 0 ? Kind::double_free : Kind::invalid_free;
  return was_freed ? Kind::use_after_free : Kind::invalid_use;
}

}  // namespace

class GuardFront final : public Front {
 public:
  GuardFront(AllocatorState& state, const KernelsFactory& kernels);

  GuardLog& log() { return log_; }
  void check();
  // Throws InvalidArgument for an index without a device.
  std::size_t quarantine_bytes(int device) const;

  void* allocate(const Request& request) override;
  void* allocate_at(std::size_t bytes, int device, Stream stream, void* address) override;
  void deallocate(void* ptr) override;
  void deallocate(void* ptr, const Claim& claim) override;
  void record_stream(void* ptr, Stream stream) override;
  void stream_ends(Stream stream) override;
  Found find(const void* ptr) const override;
  std::optional<std::size_t> requested_bytes(const void* ptr) const override;
  InvalidArgument not_live(const void* ptr, PointerUse use) const override;
  void run(FunctionRef<void()> action) override { log_.tell_after(action); }
  void run_without_handlers_errors(FunctionRef<void()> action) override;
  void note_pool_users(int device, PoolId pool) override { at(device).note_users(pool); }
  void note_pool_refusal(int device, PoolId pool, std::string_view message) override;
  bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) override;
  PoolCheckpoint checkpoint_pool(int device, PoolId pool) override;
  RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint) override;
  void drain(int device) override;
  void put_to_sleep(int device, FunctionRef<void()> release) override { at(device).put_to_sleep(release); }
  void wake(int device, FunctionRef<void()> restore) override;
  std::string validate() const override;
  std::size_t metadata_bytes() const override;

 private:
  DeviceGuard& at(int device) const { return *guards_[static_cast<std::size_t>(device)]; }

  AllocatorState& state_;
  GuardLog log_;
  std::vector<std::unique_ptr<DeviceGuard>> guards_;  // one per device
};

GuardFront::GuardFront(AllocatorState& state, const KernelsFactory& kernels) : state_(state) {
  CACHALOT_REQUIRE(kernels, "the factory of kernels is empty; the guard needs one, as host_kernels");
  const DeviceGuard::Duties duties{.canaries = has_guard(state.options), .debug = state.options.debug};
  for (const auto& allocator : state.devices()) {
    guards_.push_back(std::make_unique<DeviceGuard>(*allocator, state.page_map(), duties, kernels, log_));
  }
}

void GuardFront::check() {
  log_.tell_after([this] {
    for (const auto& guard : guards_) guard->check();
  });
}

std::size_t GuardFront::quarantine_bytes(int device) const {
  state_.at(device);
  return at(device).quarantine_bytes();
}

// ---- Malloc and free -----------------------------------------------------------------------------------------------------

void* GuardFront::allocate(const Request& request) {
  state_.at(request.device);
  return at(request.device).allocate(request.bytes, request.stream, request.place);
}

void* GuardFront::allocate_at(std::size_t /*bytes*/, int device, Stream /*stream*/, void* /*address*/) {
  state_.at(device);
  throw InvalidArgument("allocate_at: with the guard on, no allocation has a given address");
}

void GuardFront::deallocate(void* ptr) {
  for (const auto& guard : guards_) {
    if (guard->deallocate(ptr)) return;
  }
  throw not_live(ptr, PointerUse::free);
}

void GuardFront::deallocate(void* ptr, const Claim& claim) {
  state_.at(claim.device);
  if (ptr == nullptr) return;
  for (std::size_t i = 0; i < guards_.size(); ++i) {
    if (static_cast<int>(i) == claim.device || !guards_[i]->requested(ptr)) continue;
    const std::string message = formatted("{} is an allocation of device {}, not of device {}", ptr, i, claim.device);
    guards_[i]->report_mistake(Kind::wrong_device, ptr, message);
    throw InvalidArgument(message);
  }
  if (!at(claim.device).deallocate(ptr, claim)) throw not_live(ptr, PointerUse::free);
}

void GuardFront::record_stream(void* ptr, Stream stream) {
  for (const auto& guard : guards_) {
    if (guard->record_stream(ptr, stream)) return;
  }
  throw not_live(ptr, PointerUse::other);
}

void GuardFront::stream_ends(Stream stream) {
  for (const auto& guard : guards_) guard->stream_ends(stream);
}

void GuardFront::run_without_handlers_errors(FunctionRef<void()> action) {
  const GuardLog::Batch batch(log_);  // its end drops them
  action();
}

// ---- One allocation ------------------------------------------------------------------------------------------------------

Front::Found GuardFront::find(const void* ptr) const {
  for (const auto& guard : guards_) {
    if (!guard->requested(ptr)) continue;
    const Address start = guard->in_heap(as_address(ptr));
    return {state_.page_map().find(start), as_pointer(start)};
  }
  return {nullptr, ptr};
}

std::optional<std::size_t> GuardFront::requested_bytes(const void* ptr) const {
  for (const auto& guard : guards_) {
    if (const auto bytes = guard->requested(ptr)) return bytes;
  }
  return std::nullopt;
}

// The guards know more of an address than the heaps.
InvalidArgument GuardFront::not_live(const void* ptr, PointerUse use) const {
  std::optional<DeviceGuard::Sighting> sighting;
  PlaceInHeaps place;
  for (std::size_t i = 0; i < guards_.size() && !sighting; ++i) {
    sighting = guards_[i]->sight(ptr);
    if (sighting) place = {.text = sighting->place(), .device = i};
  }
  if (!sighting) place = place_in_heaps(state_, ptr);
  const std::string message = not_live_message(ptr, place.text);
  if (!guards_.empty()) guards_[place.device]->report_mistake(kind_of(use == PointerUse::free, sighting), ptr, message);
  return InvalidArgument(sighting ? formatted("{} ({})", message, sighting->history()) : message);
}

// ---- Pools and sleep -----------------------------------------------------------------------------------------------------

void GuardFront::note_pool_refusal(int device, PoolId pool, std::string_view message) {
  at(device).report_released_pool(pool, message);
}

// For the user, blocks in quarantine are not allocations of the pool.
bool GuardFront::pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) {
  at(device).drain();
  std::vector<void*> in_heap;
  in_heap.reserve(live.size());
  for (const void* ptr : live) in_heap.push_back(as_pointer(at(device).in_heap(as_address(ptr))));
  return state_.at(device).checkpoints.pool_has_exactly(pool, in_heap);
}

PoolCheckpoint GuardFront::checkpoint_pool(int device, PoolId pool) {
  at(device).drain();
  return state_.at(device).checkpoints.checkpoint_pool(pool);
}

RestoreResult GuardFront::restore_pool(int device, const PoolCheckpoint& checkpoint) {
  return at(device).restore(checkpoint);
}

void GuardFront::drain(int device) {
  if (device != kAllDevices) {
    if (static_cast<std::size_t>(device) < guards_.size()) at(device).drain();
    return;
  }
  for (const auto& guard : guards_) guard->drain();
}

void GuardFront::wake(int device, FunctionRef<void()> restore) {
  at(device).drain();
  restore();
  at(device).wake();
}

std::string GuardFront::validate() const {
  for (const auto& guard : guards_) {
    if (std::string broken = guard->validate(); !broken.empty()) return broken;
  }
  return "";
}

std::size_t GuardFront::metadata_bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const auto& guard : guards_) bytes += guard->metadata_bytes();
  return bytes;
}

// ---- The public face -----------------------------------------------------------------------------------------------------

FrontFactory guard_factory(KernelsFactory kernels) {
  return [kernels = std::move(kernels)](AllocatorState& state) -> std::unique_ptr<Front> {
    return std::make_unique<GuardFront>(state, kernels);
  };
}

AllocatorGuard::AllocatorGuard(CachingAllocator& allocator) : state_(*allocator.state_) {
  state_.require_own_process();
}

GuardFront* AllocatorGuard::front() const {
  state_.require_own_process();
  return dynamic_cast<GuardFront*>(&state_.front());
}

void AllocatorGuard::set_handler(GuardHandler handler) {
  if (GuardFront* const guard = front()) guard->log().set_handler(std::move(handler));
}

std::uint64_t AllocatorGuard::reports() const {
  GuardFront* const guard = front();
  return guard == nullptr ? 0 : guard->log().count();
}

std::vector<GuardReport> AllocatorGuard::check() {
  GuardFront* const guard = front();
  CACHALOT_REQUIRE(guard != nullptr,
                   "check_guard: the guard is off; guard:True or debug:True turns it on when the allocator is made");
  guard->check();
  return guard->log().take();
}

std::size_t AllocatorGuard::quarantine_bytes(int device) const {
  state_.at(device);
  GuardFront* const guard = front();
  return guard == nullptr ? 0 : guard->quarantine_bytes(device);
}

CACHALOT_END
