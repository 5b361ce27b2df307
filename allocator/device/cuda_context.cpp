#include "device/cuda_context.h"

#include "cachalot/errors.h"
#include "device/cuda_driver.h"

CACHALOT_BEGIN

namespace {

// The number of the calling thread's current context.
CUresult id_of_current_context(std::uint64_t& id) {
  unsigned long long number = 1;
  const bool has_ids = driver().context_get_id != nullptr;
  const CUresult result = has_ids ? driver().context_get_id(nullptr, &number) : CUDA_SUCCESS;
  id = number;
  return result;
}

}  // namespace

bool CudaContext::is_current() const {
  const std::uint64_t first = id();
  if (first == 0) return false;
  CUcontext current = nullptr;
  if (driver().context_get_current(&current) != CUDA_SUCCESS || current != handle_.load()) return false;
  std::uint64_t now = 0;
  return id_of_current_context(now) == CUDA_SUCCESS && now == first;
}

void CudaContext::push() {
  const CUresult result = driver().context_push(handle());
  if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) throw_reset();
  check("cuCtxPushCurrent", result);
  if (is_in_its_life()) return;
  pop();
  throw_reset();
}

void CudaContext::pop() {
  CUcontext popped = nullptr;
  driver().context_pop(&popped);
}

CUctx_st* CudaContext::handle() {
  if (CUcontext known = handle_.load(std::memory_order_acquire)) return known;
  const Lock lock(making_);
  if (CUcontext known = handle_.load(std::memory_order_relaxed)) return known;
  CUdevice device = 0;
  check("cuDeviceGet", driver().device_get(&device, ordinal_));
  CUcontext made = nullptr;
  check("cuDevicePrimaryCtxRetain", driver().primary_context_retain(&made, device));
  handle_.store(made, std::memory_order_release);
  return made;
}

// The first context that is asked about is the one: everything is made in it.
bool CudaContext::is_in_its_life() {
  std::uint64_t now = 0;
  if (id_of_current_context(now) != CUDA_SUCCESS) return false;
  std::uint64_t first = 0;
  return id_.compare_exchange_strong(first, now, std::memory_order_acq_rel) || first == now;
}

void CudaContext::throw_reset() const { throw DeviceReset(ordinal_); }

CACHALOT_END
