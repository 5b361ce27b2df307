// The runtime's stream-ordered memory: cudaMallocAsync and its pools.
#include <algorithm>
#include <span>

#include "base/bytes.h"
#include "simulator/device/address_space.h"
#include "simulator/state/calls.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace {

cudaError_t malloc_async(Process& process, void** pointer, std::size_t bytes, MemoryPool& pool, cudaStream_t handle) {
  StreamState& stream = process.streams().at("cudaMallocAsync", handle);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = process.pools().malloc(pool, stream, bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

template <typename Value>
cudaError_t give_attribute(void* to, Value value) {
  *static_cast<Value*>(to) = value;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    const int device = process.streams().at("cudaMallocAsync", stream).device;
    return malloc_async(process, pointer, bytes, *process.devices().at(device).pool, stream);
  });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return runtime_call(
      [&](Process& process) { return malloc_async(process, pointer, bytes, process.pools().at(pool), stream); });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  return runtime_call([&](Process& process) {
    StreamState& stream = process.streams().at("cudaFreeAsync", handle);
    if (!pointer) return cudaSuccess;
    if (stream.capture) process.captures().add_node(stream, cudaGraphNodeTypeMemFree);
    const Address address = reinterpret_cast<Address>(pointer);
    if (const Pools::Block* block = process.pools().find(address))
      process.uses().check_free("cudaFreeAsync", stream, {address, block->bytes});
    return process.pools().free(address);
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return runtime_call([&](Process& process) { *pool = Pools::handle(*process.devices().at(device).default_pool); });
}

cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* location, cudaMemAllocationType type) {
  if (location->type != cudaMemLocationTypeDevice || type != cudaMemAllocationTypePinned) return cudaErrorNotSupported;
  return cudaDeviceGetDefaultMemPool(pool, location->id);
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return runtime_call([&](Process& process) { *pool = Pools::handle(*process.devices().at(device).pool); });
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return runtime_call([&](Process& process) {
    MemoryPool& chosen = process.pools().at(pool);
    if (chosen.device != device) return cudaErrorInvalidValue;
    process.devices().at(device).pool = &chosen;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return runtime_call([&](Process& process) {
    if (properties->location.type != cudaMemLocationTypeDevice) return cudaErrorNotSupported;
    const int device = process.devices().at(properties->location.id).ordinal;
    *pool = Pools::handle(process.pools().make(device));
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return runtime_call([&](Process& process) {
    MemoryPool& pool = process.pools().at(handle);
    DeviceState& device = process.devices().at(pool.device);
    if (&pool == device.default_pool) return cudaErrorInvalidValue;
    if (device.pool == &pool) device.pool = device.default_pool;
    process.pools().destroy(pool);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes) {
  return runtime_call([&](Process& process) { process.pools().trim(process.pools().at(pool), keep_bytes); });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return runtime_call([&](Process& process) {
    const MemoryPool& pool = process.pools().at(handle);
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
        return give_attribute(value, pool.reuse_follow_event_dependencies);
      case cudaMemPoolReuseAllowOpportunistic:
        return give_attribute(value, pool.reuse_allow_opportunistic);
      case cudaMemPoolReuseAllowInternalDependencies:
        return give_attribute(value, pool.reuse_allow_internal_dependencies);
      case cudaMemPoolAttrReleaseThreshold:
        return give_attribute(value, pool.release_threshold);
      case cudaMemPoolAttrReservedMemCurrent:
        return give_attribute(value, std::uint64_t{pool.memory.reserved_bytes()});
      case cudaMemPoolAttrReservedMemHigh:
        return give_attribute(value, std::uint64_t{pool.reserved_peak_bytes});
      case cudaMemPoolAttrUsedMemCurrent:
        return give_attribute(value, std::uint64_t{pool.used_bytes});
      case cudaMemPoolAttrUsedMemHigh:
        return give_attribute(value, std::uint64_t{pool.used_peak_bytes});
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return runtime_call([&](Process& process) {
    MemoryPool& pool = process.pools().at(handle);
    const auto flag = [&] { return *static_cast<const int*>(value); };
    const auto is_zero = [&] { return *static_cast<const std::uint64_t*>(value) == 0; };
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
        pool.reuse_follow_event_dependencies = flag();
        break;
      case cudaMemPoolReuseAllowOpportunistic:
        pool.reuse_allow_opportunistic = flag();
        break;
      case cudaMemPoolReuseAllowInternalDependencies:
        pool.reuse_allow_internal_dependencies = flag();
        break;
      case cudaMemPoolAttrReleaseThreshold:
        pool.release_threshold = *static_cast<const std::uint64_t*>(value);
        break;
      case cudaMemPoolAttrReservedMemHigh:
        if (!is_zero()) return cudaErrorInvalidValue;
        pool.reserved_peak_bytes = pool.memory.reserved_bytes();
        break;
      case cudaMemPoolAttrUsedMemHigh:
        if (!is_zero()) return cudaErrorInvalidValue;
        pool.used_peak_bytes = pool.used_bytes;
        break;
      default:
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

// A pool's own device always has access. No use of memory by a device without access is refused.
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* list, size_t count) {
  return runtime_call([&](Process& process) {
    MemoryPool& pool = process.pools().at(handle);
    for (const cudaMemAccessDesc& access : std::span(list, count)) {
      if (access.location.type != cudaMemLocationTypeDevice) return cudaErrorInvalidValue;
      const int device = process.devices().at(access.location.id).ordinal;
      const bool may_use = access.flags != cudaMemAccessFlagsProtNone;
      if (device == pool.device && !may_use) return cudaErrorInvalidValue;
      pool.peers.erase(device);
      if (may_use) pool.peers.insert(device);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation* location) {
  return runtime_call([&](Process& process) {
    const MemoryPool& pool = process.pools().at(handle);
    const int device = process.devices().at(location->id).ordinal;
    const bool may_use = device == pool.device || pool.peers.contains(device);
    *flags = may_use ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
  });
}

}  // extern "C"

CACHALOT_SIMULATOR_PER_THREAD(cudaFreeAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMallocAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMallocFromPoolAsync, ptsz)
