#include "simulator/ipc.h"

#include <unistd.h>

#include <cstring>
#include <type_traits>

#include "cachalot/errors.h"
#include "device/cuda_codes.h"

namespace cachalot::simulator {
namespace {

struct Packed {
  std::uint64_t exporter;  // with address and bytes: the exporter's ExportedMemory
  Address address;
  std::size_t bytes;
  ContentStore::Window window;
};
static_assert(sizeof(Packed) <= sizeof(cudaIpcMemHandle_t) && std::is_trivially_copyable_v<Packed>);

}  // namespace

cudaIpcMemHandle_t IpcMemory::share(Address address) {
  DeviceState& device = devices_.owner("cudaIpcGetMemHandle", address);
  const MemoryAt memory = *device.simulated->memory_at(address);
  const Address base = memory.range.address;
  const ExportedMemory exported = from_ipc_handle(devices_.on_clock(device).ipc_export(base));
  const Packed packed{exported.exporter, exported.address, exported.bytes,
                      content_.window({device.ordinal, memory.physical - (address - base)})};
  cudaIpcMemHandle_t handle{};
  std::memcpy(&handle, &packed, sizeof(packed));
  return handle;
}

Address IpcMemory::open(const cudaIpcMemHandle_t& handle) {
  Packed packed;
  std::memcpy(static_cast<void*>(&packed), &handle, sizeof(packed));
  DeviceState& device = contexts_.current();
  ExportedMemory exported{packed.exporter, packed.address, packed.bytes};
  if (packed.window.process == getpid()) return devices_.on_clock(device).ipc_import(to_ipc_handle(exported));
  // The numbers of our own exporters are small: with the process in front of it no two are the same.
  exported.exporter |= static_cast<std::uint64_t>(packed.window.process) << 32;
  publish_export(exported);
  const Address address = devices_.on_clock(device).ipc_import(to_ipc_handle(exported));
  const MemoryAt memory = *device.simulated->memory_at(address);
  if (!content_.attach({device.ordinal, memory.physical}, exported.bytes, packed.window)) {
    devices_.on_clock(device).ipc_close(address);
    fail("cudaIpcOpenMemHandle", CudaCode::invalid_value, "the process that shares it is gone");
  }
  imports_[address] = exported;
  return address;
}

void IpcMemory::close(Address address) {
  DeviceState& device = devices_.owner("cudaIpcCloseMemHandle", address);
  devices_.on_clock(device).ipc_close(address);
  const auto at = imports_.find(address);
  if (at == imports_.end() || device.simulated->memory_at(address)) return;
  writes_.forget(reinterpret_cast<void*>(address), at->second.bytes);
  withdraw_export(at->second.exporter, at->second.address);
  imports_.erase(at);
}

// The device still knows whose its imports are.
void IpcMemory::forget_all(const DeviceState& device) {
  std::erase_if(imports_, [&](const auto& entry) {
    know_locked();
    return devices_.find_owner(entry.first) == &device;
  });
}

}  // namespace cachalot::simulator
