#include "groups/allocator_state.h"

#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "cachalot/allocator_group.h"

CACHALOT_BEGIN

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

std::vector<DeviceAllocator*> AllocatorState::selected(int device) const {
  if (device != kAllDevices) return {&at(device)};
  std::vector<DeviceAllocator*> all;
  for (const auto& allocator : devices()) all.push_back(allocator.get());
  return all;
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

CACHALOT_END
