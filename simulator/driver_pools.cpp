// The driver's functions about stream-ordered memory.
#include "simulator/calls.h"

using namespace cachalot::simulator;

extern "C" {

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return by_runtime(cudaDeviceGetDefaultMemPool, pool, device);
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return by_runtime(cudaDeviceGetMemPool, pool, device);
}
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return by_runtime(cudaDeviceSetMemPool, device, pool);
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  return by_runtime(cudaMemGetDefaultMemPool, pool, reinterpret_cast<cudaMemLocation*>(location),
                    static_cast<cudaMemAllocationType>(type));
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  static_assert(sizeof(CUmemPoolProps) == sizeof(cudaMemPoolProps));
  return by_runtime(cudaMemPoolCreate, pool, reinterpret_cast<const cudaMemPoolProps*>(properties));
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) { return by_runtime(cudaMemPoolDestroy, pool); }
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  return by_runtime(cudaMemPoolTrimTo, pool, keep_bytes);
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  return by_runtime(cudaMemPoolGetAttribute, pool, static_cast<cudaMemPoolAttr>(attribute), value);
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  return by_runtime(cudaMemPoolSetAttribute, pool, static_cast<cudaMemPoolAttr>(attribute), value);
}
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  return by_runtime(cudaMemPoolSetAccess, pool, reinterpret_cast<const cudaMemAccessDesc*>(access), count);
}
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  return by_runtime(cudaMemPoolGetAccess, reinterpret_cast<cudaMemAccessFlags*>(flags), pool,
                    reinterpret_cast<cudaMemLocation*>(location));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return by_runtime_in_context(__func__, cudaMallocFromPoolAsync, reinterpret_cast<void**>(address), bytes, pool,
                               stream);
}

}  // extern "C"
