#include "simulator/devices.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "device/address_space.h"
#include "device/cuda_codes.h"

namespace cachalot::simulator {
namespace {

constexpr Address kPreferredAddress = Address{1} << 40;  // the same in every run, where it is free

// Throws InvalidArgument when the host will not reserve that much.
AddressRange reserve_addresses(std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const std::size_t mapped_bytes = bytes + kPhysicalUnit;  // so that an aligned start is in it
  void* start =
      mmap(reinterpret_cast<void*>(kPreferredAddress), mapped_bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  if (start == MAP_FAILED) start = mmap(nullptr, mapped_bytes, PROT_NONE, kFlags, -1, 0);
  if (start == MAP_FAILED) {
    throw InvalidArgument(formatted("CACHALOT_SIM_ADDRESS_SPACE: the system refuses {} of address space ({})",
                                    format_bytes(bytes), std::strerror(errno)));
  }
  return {round_up(reinterpret_cast<Address>(start), kPhysicalUnit), bytes};
}

}  // namespace

Devices::Devices(const Config& config, ContentStore& content)
    : shared_(config.shared_path.empty() ? nullptr : std::make_unique<SharedMemory>(config.shared_path)),
      reserved_(reserve_addresses(config.address_space_bytes)) {
  limit_addresses(reserved_);
  for (int ordinal = 0; ordinal < config.devices; ++ordinal) devices_.push_back(make(config, ordinal, content));
  on_clock_ = devices_.front().get();
}

std::unique_ptr<DeviceState> Devices::make(const Config& config, int ordinal, ContentStore& content) {
  SimulatedDevice::Config simulated;
  simulated.index = ordinal;
  simulated.memory_bytes = config.memory_bytes;
  simulated.latency = config.latency();
  simulated.log_calls = !config.log_path.empty();
  simulated.captures_refuse = false;
  simulated.mapping_waits = config.mapping_waits;
  simulated.completion_hints = false;
  simulated.memory_freed = [&content, ordinal](std::uint64_t first, std::size_t bytes) {
    content.forget({ordinal, first}, bytes);
  };
  if (shared_) {
    simulated.account =
        shared_->account(config.physical_devices[static_cast<std::size_t>(ordinal)], config.memory_bytes);
  }
  simulated.name = std::string(config.gpu->product);
  auto device = std::make_unique<DeviceState>();
  device->ordinal = ordinal;
  device->simulated = std::make_unique<SimulatedDevice>(simulated);
  device->simulated->set_faults(config.faults);
  device->peers.resize(static_cast<std::size_t>(config.devices));
  return device;
}

DeviceState& Devices::at(int ordinal) {
  if (ordinal < 0 || ordinal >= count()) throw CudaError("cudaSetDevice", cudaErrorInvalidDevice, "no such device");
  return *devices_[static_cast<std::size_t>(ordinal)];
}

// The host has one time, and each device its clock: a device takes over the time of the one used before it.
SimulatedDevice& Devices::on_clock(DeviceState& device) {
  if (&device != on_clock_) {
    const std::int64_t behind_ns = clock_ns() - device.simulated->clock_ns();
    if (behind_ns > 0) device.simulated->advance(behind_ns);
    on_clock_ = &device;
  }
  return *device.simulated;
}

DeviceState* Devices::find_owner(Address address) {
  if (!hold(reinterpret_cast<void*>(address))) return nullptr;
  for (const auto& device : devices_) {
    if (device->simulated->memory_at(address)) return device.get();
  }
  return nullptr;
}

DeviceState& Devices::owner(const char* call, Address address) {
  DeviceState* device = find_owner(address);
  if (!device) fail(call, CudaCode::invalid_value, "not an address of device memory");
  return *device;
}

}  // namespace cachalot::simulator
