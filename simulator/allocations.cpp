#include "simulator/allocations.h"

#include <optional>

namespace cachalot::simulator {

void* Allocations::malloc(DeviceState& device, std::size_t bytes) {
  const std::optional<Address> address = devices_.on_clock(device).malloc(bytes);
  if (report_.is_wanted()) report_.note_allocation(*device.simulated, "cudaMalloc", bytes, address.has_value());
  void* const start = reinterpret_cast<void*>(address.value_or(0));
  if (start) watch_.made(Owned::device_memory, start, device.ordinal, bytes);
  return start;
}

void Allocations::free(const char* call, Address address) {
  DeviceState& device = devices_.count() == 1 ? devices_.at(0) : devices_.owner(call, address);
  host_functions_.wait_for_all(device);
  if (writes_.are_pending() || watch_.is_on()) {
    if (const auto memory = device.simulated->memory_at(address))
      writes_.forget(reinterpret_cast<void*>(memory->range.address), memory->range.bytes);
  }
  devices_.on_clock(device).free(address);
  watch_.gone(Owned::device_memory, reinterpret_cast<void*>(address));
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

// Pinned memory is the device's: its calls are counted and may fail.
void* Allocations::malloc_host(HostRange::Kind kind, std::size_t bytes, unsigned int flags, int device) {
  if (kind == HostRange::Kind::managed) return host_memory_.allocate_managed(bytes, flags, device);
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
  watch_.gone(Owned::pinned_memory, start);
  return host_memory_.forget(kind, start);
}

}  // namespace cachalot::simulator
