// The runtime's stream-ordered memory: cudaMallocAsync and its pools.
#include <algorithm>

#include "base/bytes.h"
#include "device/address_space.h"
#include "simulator/calls.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace cachalot::simulator {

void* Process::malloc_from(MemoryPool& pool, StreamState& stream, std::size_t bytes) {
  const std::size_t rounded = round_up(bytes, kPhysicalUnit);
  Address address = 0;
  if (const auto kept = pool.kept.find(rounded); kept != pool.kept.end()) {
    address = kept->second;
    pool.kept.erase(kept);
  } else {
    address = reinterpret_cast<Address>(malloc(device(pool.device), rounded, &pool));
    if (address == 0) return nullptr;
    pool.reserved_bytes += rounded;
    pool.reserved_peak_bytes = std::max(pool.reserved_peak_bytes, pool.reserved_bytes);
  }
  if (stream.capture) capture_node(stream, cudaGraphNodeTypeMemAlloc);
  pool.used_bytes += rounded;
  pool.used_peak_bytes = std::max(pool.used_peak_bytes, pool.used_bytes);
  pools.blocks.emplace(address, Pools::Block{&pool, rounded});
  if (!stream.capture) watch.made(Owned::pool_memory, reinterpret_cast<void*>(address), pool.device, bytes);
  uses_.forget({address, rounded});  // the pool sees to the order with uses before
  return reinterpret_cast<void*>(address);
}

cudaError_t Process::free_to_pool(Address address) {
  const auto at = pools.blocks.find(address);
  if (at == pools.blocks.end()) return cudaErrorInvalidValue;
  auto [pool, bytes] = at->second;
  pools.blocks.erase(at);
  watch.gone(Owned::pool_memory, reinterpret_cast<void*>(address));
  pool->used_bytes -= bytes;
  pool->kept.emplace(bytes, address);
  if (pool->destroyed) destroy_pool(*pool);
  return cudaSuccess;
}

void Process::destroy_pool(MemoryPool& pool) {
  pool.destroyed = true;
  trim_pool(pool, 0);
  if (pool.used_bytes == 0) pools.registry.destroy(pool);
}

}  // namespace cachalot::simulator

namespace {

cudaError_t malloc_async(Process& process, void** pointer, std::size_t bytes, MemoryPool& pool, cudaStream_t handle) {
  StreamState& stream = process.stream("cudaMallocAsync", handle);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = process.malloc_from(pool, stream, bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

MemoryPool& pool_at(Process& process, cudaMemPool_t handle) {
  MemoryPool& pool = process.pools.registry.at("cudaMemPool", handle);
  if (pool.destroyed) fail("cudaMemPool", CudaCode::invalid_resource_handle, "destroyed already");
  return pool;
}
cudaMemPool_t handle_of(const MemoryPool& pool) { return Registry<MemoryPool, cudaMemPool_t>::handle(pool); }

template <typename Value>
cudaError_t give_attribute(void* to, Value value) {
  *static_cast<Value*>(to) = value;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    const int device = process.stream("cudaMallocAsync", stream).device;
    return malloc_async(process, pointer, bytes, *process.device(device).pool, stream);
  });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return runtime_call(
      [&](Process& process) { return malloc_async(process, pointer, bytes, pool_at(process, pool), stream); });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  return runtime_call([&](Process& process) {
    StreamState& stream = process.stream("cudaFreeAsync", handle);
    if (!pointer) return cudaSuccess;
    if (stream.capture) process.capture_node(stream, cudaGraphNodeTypeMemFree);
    const Address address = reinterpret_cast<Address>(pointer);
    if (const auto block = process.pools.blocks.find(address); block != process.pools.blocks.end())
      process.check_free("cudaFreeAsync", stream, {address, block->second.bytes});
    return process.free_to_pool(address);
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return runtime_call([&](Process& process) {
    *pool = handle_of(*process.device(device).default_pool);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* location, cudaMemAllocationType type) {
  if (location->type != cudaMemLocationTypeDevice || type != cudaMemAllocationTypePinned) return cudaErrorNotSupported;
  return cudaDeviceGetDefaultMemPool(pool, location->id);
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return runtime_call([&](Process& process) {
    *pool = handle_of(*process.device(device).pool);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return runtime_call([&](Process& process) {
    MemoryPool& chosen = pool_at(process, pool);
    if (chosen.device != device) return cudaErrorInvalidValue;
    process.device(device).pool = &chosen;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return runtime_call([&](Process& process) {
    if (properties->location.type != cudaMemLocationTypeDevice) return cudaErrorNotSupported;
    const int device = process.device(properties->location.id).ordinal;
    MemoryPool& made = process.pools.registry.make();
    made.device = device;
    *pool = handle_of(made);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return runtime_call([&](Process& process) {
    MemoryPool& pool = pool_at(process, handle);
    DeviceState& device = process.device(pool.device);
    if (&pool == device.default_pool) return cudaErrorInvalidValue;
    if (device.pool == &pool) device.pool = device.default_pool;
    process.destroy_pool(pool);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes) {
  return runtime_call([&](Process& process) {
    process.trim_pool(pool_at(process, pool), keep_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return runtime_call([&](Process& process) {
    const MemoryPool& pool = pool_at(process, handle);
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
        return give_attribute(value, std::uint64_t{pool.reserved_bytes});
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
    MemoryPool& pool = pool_at(process, handle);
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
        pool.reserved_peak_bytes = pool.reserved_bytes;
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

// Every device may use every pool: access is not kept.
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc*, size_t) {
  return runtime_call([&](Process& process) {
    pool_at(process, pool);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation*) {
  return runtime_call([&](Process& process) {
    pool_at(process, pool);
    *flags = cudaMemAccessFlagsProtReadWrite;
    return cudaSuccess;
  });
}

}  // extern "C"

CACHALOT_SIMULATOR_PER_THREAD(cudaFreeAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMallocAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMallocFromPoolAsync, ptsz)
