#include "simulator/state/program_allocations.h"

#include <unistd.h>

#include <cstring>
#include <optional>
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

void* Allocations::malloc(DeviceState& device, std::size_t bytes) {
  const std::optional<Address> address = devices_.on_clock(device).malloc(bytes);
  if (report_.is_wanted()) report_.note_allocation(*device.simulated, "cudaMalloc", bytes, address.has_value());
  void* const start = reinterpret_cast<void*>(address.value_or(0));
  if (start) watch_.made(Owned::device_memory, start, device.ordinal, bytes);
  return start;
}

MemoryInfo Allocations::memory_info(DeviceState& device) {
  const MemoryInfo info = devices_.on_clock(device).memory_info();
  if (report_.is_wanted()) report_.note_memory_info(device.ordinal, info.free_bytes);
  return info;
}

const DeviceState& Allocations::free(const char* call, Address address) {
  DeviceState& device = devices_.count() == 1 ? devices_.at(0) : devices_.owner(call, address);
  host_functions_.wait_for_all(device);
  if (writes_.must_forget()) {
    if (const auto memory = device.simulated->memory_at(address))
      writes_.forget(reinterpret_cast<void*>(memory->range.address), memory->range.bytes);
  }
  devices_.on_clock(device).free(address);
  watch_.gone(Owned::device_memory, reinterpret_cast<void*>(address));
  return device;
}

void* Allocations::malloc_for_nccl(DeviceState& device, NcclMemory whose, std::size_t bytes) {
  const std::size_t used_before = device.simulated->used_bytes();
  void* const start = malloc(device, bytes);
  report_.note_nccl_memory(device.ordinal, whose, device.simulated->used_bytes() - used_before);
  return start;
}

void Allocations::free_of_nccl(NcclMemory whose, Address address) {
  DeviceState& device = devices_.owner("NCCL's cudaFree", address);
  const std::size_t used_before = device.simulated->used_bytes();
  free("NCCL's cudaFree", address);
  report_.note_nccl_memory_freed(device.ordinal, whose, used_before - device.simulated->used_bytes());
}

// The device has it from now on, where a driver moves it there when a kernel uses it: kernels do nothing here.
void* Allocations::malloc_managed(std::size_t bytes, unsigned int flags, int device) {
  SimulatedDevice& simulated = devices_.on_clock(device);
  const bool is_taken = simulated.take_managed(bytes);
  void* const start = is_taken ? host_memory_.allocate_managed(bytes, flags, device) : nullptr;
  if (is_taken && !start) simulated.give_managed_back(bytes);
  if (report_.is_wanted()) report_.note_allocation(simulated, "cudaMallocManaged", bytes, start != nullptr);
  return start;
}

// Pinned memory is the device's: its calls are counted and may fail.
void* Allocations::malloc_host(HostRange::Kind kind, std::size_t bytes, unsigned int flags, int device) {
  if (kind == HostRange::Kind::managed) return malloc_managed(bytes, flags, device);
  void* start = devices_.on_clock(device).host_malloc(bytes);
  if (!start) return nullptr;
  host_memory_.add({kind, static_cast<char*>(start), bytes, flags, device});
  watch_.made(Owned::pinned_memory, start, device, bytes);
  return start;
}

bool Allocations::free_host(HostRange::Kind kind, void* start) {
  const HostRange* range = host_memory_.find(start);
  if (!range || range->start != start || range->kind != kind) return false;
  writes_.forget(start, range->bytes);
  if (kind == HostRange::Kind::pinned) devices_.on_clock(range->device).host_free(start);
  if (kind == HostRange::Kind::managed) devices_.on_clock(range->device).give_managed_back(range->bytes);
  watch_.gone(Owned::pinned_memory, start);
  return host_memory_.forget(kind, start);
}

}  // namespace cachalot::simulator
