// The form of a device's handles of physical memory: the kinds of sharing, and whether network cards may use the memory.
//
// What a device says of itself is more than some drivers do: a fabric may be forbidden to the process (no IMEX channel),
// under WSL2 memory for GPUDirect RDMA cannot be opened, and sandboxes refuse kinds of handles. So the first need of a form
// tries them on one page, the most capable first, and the first that works is kept. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>

#include "base/locks.h"
#include "device/cuda_driver.h"

CACHALOT_BEGIN

struct HandleForm {
  int kinds = 0;      // CUmemAllocationHandleType, of any number together; 0: the handles cannot be shared
  bool rdma = false;  // for GPUDirect RDMA
};

class CudaHandleForm {
 public:
  // Makes the form of the device `ordinal`, which claims `claimed`. Asks no driver.
  CudaHandleForm(int ordinal, HandleForm claimed) : ordinal_(ordinal), claimed_(claimed) {}
  CudaHandleForm(const CudaHandleForm&) = delete;
  CudaHandleForm& operator=(const CudaHandleForm&) = delete;

  // Returns the form of handles; before one was tried with success, what the device claims.
  HandleForm get() const { return is_known_.load(std::memory_order_acquire) ? form_ : claimed_; }

  // Returns the form that works for pages of `page_bytes`: tried by the first call, and the same ever after. Returns nullopt
  // if there is no memory to try it with; the next call tries again.
  // Requires: the device's context is current. Throws CudaError if no form works, and the next call tries again.
  std::optional<HandleForm> working(std::size_t page_bytes);

 private:
  std::optional<HandleForm> try_all(std::size_t page_bytes) const;

  const int ordinal_;
  const HandleForm claimed_;
  SleepingMutex trying_;  // held while forms are tried; …
  HandleForm form_;       // … read without, but only once it is known: constant then
  std::atomic<bool> is_known_{false};
};

// The driver's descriptions of physical memory of a device, and of access by a device.
inline CUmemAllocationProp allocation_properties(int ordinal, HandleForm form) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(form.kinds);
  properties.allocFlags.gpuDirectRDMACapable = form.rdma ? 1 : 0;
  return properties;
}

inline CUmemAccessDesc access_of(int ordinal) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

CACHALOT_END
