#include "api/allocator_state.h"

#include "base/check.h"
#include "base/format.h"
#include "cachalot/allocator_groups.h"

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
                               const FrontFactory& make_front)
    : options(wanted) {
  const bool needs_front = has_guard(wanted) || wanted.debug;
  CACHALOT_REQUIRE(!needs_front || make_front,
                   "{}:True: the allocator is made without a guard; pass guard_factory() (cachalot/guard.h, library "
                   "cachalot::diagnostics) to its constructor",
                   wanted.debug ? "debug" : "guard");
  own_.page_map = std::make_unique<PageMap>();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    CACHALOT_REQUIRE(devices[i] != nullptr, "device {} is null", i);
    CACHALOT_REQUIRE(devices[i]->index() == static_cast<int>(i), "device {} says its index is {}", i,
                     devices[i]->index());
    own_.devices.push_back(std::make_unique<DeviceAllocator>(std::move(devices[i]), *own_.page_map, wanted));
  }
  for (const auto& allocator : own_.devices) {
    allocator->pressure.set_evictor([this, &device = *allocator](const PrivatePool* but, int priority) {
      std::size_t bytes = 0;
      front().put_to_sleep(device.state.index, [&] { bytes = device.evictable.evict_one(but, priority); });
      return bytes;
    });
  }
  own_.front = needs_front ? make_front(*this) : std::make_unique<PlainFront>(*this);
  CACHALOT_REQUIRE(own_.front != nullptr, "the factory of the guard returned null; it must return a guard");
  forked_.front = std::make_unique<ForkedFront>(*this);
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
  const auto lock = lock_options();
  return options;
}

std::unique_lock<std::mutex> AllocatorState::lock_options() const {
  require_own_process();
  return std::unique_lock(options_mutex_);
}

CACHALOT_END
