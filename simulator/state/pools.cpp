#include "simulator/state/pools.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/bytes.h"
#include "device/cuda_codes.h"
#include "simulator/device/address_space.h"

namespace cachalot::simulator {

std::optional<Address> PoolMemory::take(std::size_t bytes) {
  const auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [found, address] = *best;
  erase(free_.find(address));
  if (found != bytes) insert(address + bytes, found - bytes);
  return address;
}

// Pieces of two regions do not merge, even if these lie side by side: the device gave each by itself.
void PoolMemory::give_back(Address address, std::size_t bytes) {
  const auto behind = free_.lower_bound(address);
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == address && !regions_.contains(address)) {
      address = before->first;
      bytes += before->second;
      erase(before);
    }
  }
  if (behind != free_.end() && behind->first == address + bytes && !regions_.contains(behind->first)) {
    bytes += behind->second;
    erase(behind);
  }
  insert(address, bytes);
}

void PoolMemory::add(Region region) {
  regions_.emplace(region.address, region.bytes);
  reserved_bytes_ += region.bytes;
  insert(region.address, region.bytes);
}

std::optional<PoolMemory::Region> PoolMemory::remove_idle() {
  for (auto piece = by_size_.rbegin(); piece != by_size_.rend(); ++piece) {
    const auto [bytes, address] = *piece;
    const auto region = regions_.find(address);
    if (region == regions_.end() || region->second != bytes) continue;
    erase(free_.find(address));
    regions_.erase(region);
    reserved_bytes_ -= bytes;
    return Region{address, bytes};
  }
  return std::nullopt;
}

void PoolMemory::insert(Address address, std::size_t bytes) {
  free_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
}

void PoolMemory::erase(std::map<Address, std::size_t>::iterator piece) {
  by_size_.erase({piece->second, piece->first});
  free_.erase(piece);
}

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
  const std::size_t rounded = round_up(bytes, PoolMemory::kAlignment);
  std::optional<Address> address = pool.memory.take(rounded);
  if (!address && grow(pool, rounded)) address = pool.memory.take(rounded);
  if (!address) return nullptr;
  void* const start = reinterpret_cast<void*>(*address);
  if (stream.capture) captures_.add_node(stream, cudaGraphNodeTypeMemAlloc);
  pool.used_bytes += bytes;
  pool.used_peak_bytes = std::max(pool.used_peak_bytes, pool.used_bytes);
  blocks_.emplace(*address, Block{&pool, bytes});
  if (!stream.capture) watch_.made(Owned::pool_memory, start, pool.device, bytes);
  uses_.forget({*address, rounded});  // the pool sees to the order with uses before
  return start;
}

// Grows the pool by a region that holds `rounded` bytes. The driver remaps free memory of the pool: regions without a block make
// way for the new one. All of them do if the device has no memory; a region of just the block's size is the last resort.
bool Pools::grow(MemoryPool& pool, std::size_t rounded) {
  const std::size_t wanted = round_up(rounded, PoolMemory::kRegionUnit);
  for (std::size_t made_way = 0; made_way < wanted;) {
    const std::optional<PoolMemory::Region> idle = pool.memory.remove_idle();
    if (!idle) break;
    made_way += idle->bytes;
    release(pool, *idle);
  }
  SimulatedDevice& device = devices_.on_clock(pool.device);
  std::size_t bytes = wanted;
  std::optional<Address> address = device.malloc(bytes);
  if (!address) {
    trim(pool, 0);
    address = device.malloc(bytes);
  }
  if (!address) address = device.malloc(bytes = round_up(rounded, kPhysicalUnit));
  if (report_.is_wanted()) report_.note_allocation(device, "cudaMalloc", bytes, address.has_value());
  if (!address) return false;
  pool.memory.add({*address, bytes});
  pool.reserved_peak_bytes = std::max(pool.reserved_peak_bytes, pool.memory.reserved_bytes());
  return true;
}

cudaError_t Pools::free(Address address) {
  const auto at = blocks_.find(address);
  if (at == blocks_.end()) return cudaErrorInvalidValue;
  const auto [pool, bytes] = at->second;
  blocks_.erase(at);
  watch_.gone(Owned::pool_memory, reinterpret_cast<void*>(address));
  pool->used_bytes -= bytes;
  pool->memory.give_back(address, round_up(bytes, PoolMemory::kAlignment));
  if (pool->destroyed) destroy(*pool);
  return cudaSuccess;
}

const Pools::Block* Pools::find(Address address) const {
  const auto at = blocks_.find(address);
  return at == blocks_.end() ? nullptr : &at->second;
}

void Pools::trim(MemoryPool& pool, std::size_t to_bytes) {
  while (pool.memory.reserved_bytes() > to_bytes) {
    const std::optional<PoolMemory::Region> idle = pool.memory.remove_idle();
    if (!idle) return;
    release(pool, *idle);
  }
}

void Pools::release(MemoryPool& pool, const PoolMemory::Region& region) {
  writes_.forget(reinterpret_cast<void*>(region.address), region.bytes);
  devices_.on_clock(pool.device).free_without_waiting(region.address);
}

void Pools::trim_all() {
  pools_.for_each([&](MemoryPool& pool) {
    know_locked();
    trim(pool, pool.release_threshold);
  });
}

}  // namespace cachalot::simulator
