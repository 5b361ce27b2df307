#include "simulator/pools.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/bytes.h"
#include "device/address_space.h"
#include "device/cuda_codes.h"

namespace cachalot::simulator {

Pools::Pools(Report& report, Watch& watch, Devices& devices, Captures& captures, UseChecks& uses, StreamWrites& writes)
    : report_(report), watch_(watch), devices_(devices), captures_(captures), uses_(uses), writes_(writes) {
  for (int ordinal = 0; ordinal < devices_.count(); ++ordinal) {
    DeviceState& device = devices_.at(ordinal);
    device.default_pool = device.pool = &make(ordinal);
  }
}

MemoryPool& Pools::make(int device) {
  MemoryPool& pool = pools_.make();
  pool.device = device;
  return pool;
}

MemoryPool& Pools::at(cudaMemPool_t handle) {
  MemoryPool& pool = pools_.at("cudaMemPool", handle);
  if (pool.destroyed) fail("cudaMemPool", CudaCode::invalid_resource_handle, "destroyed already");
  return pool;
}

void Pools::destroy(MemoryPool& pool) {
  pool.destroyed = true;
  trim(pool, 0);
  if (pool.used_bytes == 0) pools_.destroy(pool);
}

void Pools::destroy_all(DeviceState& device) {
  std::erase_if(blocks_, [&](const auto& entry) { return entry.second.pool->device == device.ordinal; });
  pools_.destroy_if(
      [&](const MemoryPool& pool) { return pool.device == device.ordinal && &pool != device.default_pool; });
  *device.default_pool = MemoryPool{};
  device.default_pool->device = device.ordinal;
  device.pool = device.default_pool;
}

void* Pools::malloc(MemoryPool& pool, StreamState& stream, std::size_t bytes) {
  const std::size_t rounded = round_up(bytes, kPhysicalUnit);
  const Address address = take(pool, rounded);
  void* const start = reinterpret_cast<void*>(address);
  if (!start) return nullptr;
  if (stream.capture) captures_.add_node(stream, cudaGraphNodeTypeMemAlloc);
  pool.used_bytes += rounded;
  pool.used_peak_bytes = std::max(pool.used_peak_bytes, pool.used_bytes);
  blocks_.emplace(address, Block{&pool, rounded});
  if (!stream.capture) watch_.made(Owned::pool_memory, start, pool.device, bytes);
  uses_.forget({address, rounded});  // the pool sees to the order with uses before
  return start;
}

// What the pool keeps, or memory of the device, for which the pool gives back what it keeps, if need be. 0: there is
// none.
Address Pools::take(MemoryPool& pool, std::size_t rounded) {
  if (const auto kept = pool.kept.find(rounded); kept != pool.kept.end()) {
    const Address address = kept->second;
    pool.kept.erase(kept);
    return address;
  }
  SimulatedDevice& device = devices_.on_clock(pool.device);
  std::optional<Address> address = device.malloc(rounded);
  if (!address && !pool.kept.empty()) {
    trim(pool, 0);
    address = device.malloc(rounded);
  }
  if (report_.is_wanted()) report_.note_allocation(device, "cudaMalloc", rounded, address.has_value());
  if (!address) return 0;
  pool.reserved_bytes += rounded;
  pool.reserved_peak_bytes = std::max(pool.reserved_peak_bytes, pool.reserved_bytes);
  return *address;
}

cudaError_t Pools::free(Address address) {
  const auto at = blocks_.find(address);
  if (at == blocks_.end()) return cudaErrorInvalidValue;
  auto [pool, bytes] = at->second;
  blocks_.erase(at);
  watch_.gone(Owned::pool_memory, reinterpret_cast<void*>(address));
  pool->used_bytes -= bytes;
  pool->kept.emplace(bytes, address);
  if (pool->destroyed) destroy(*pool);
  return cudaSuccess;
}

const Pools::Block* Pools::find(Address address) const {
  const auto at = blocks_.find(address);
  return at == blocks_.end() ? nullptr : &at->second;
}

void Pools::trim(MemoryPool& pool, std::size_t to_bytes) {
  while (!pool.kept.empty() && pool.reserved_bytes > to_bytes) {
    const auto last = std::prev(pool.kept.end());
    const auto [bytes, address] = *last;
    pool.kept.erase(last);
    pool.reserved_bytes -= bytes;
    writes_.forget(reinterpret_cast<void*>(address), bytes);
    devices_.on_clock(pool.device).free_without_waiting(address);
  }
}

void Pools::trim_all() {
  pools_.for_each([&](MemoryPool& pool) {
    know_locked();
    trim(pool, pool.release_threshold);
  });
}

}  // namespace cachalot::simulator
