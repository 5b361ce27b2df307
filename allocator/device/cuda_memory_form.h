// The driver's descriptions of physical memory of a device, and of access by a device.
#pragma once

#include "device/cuda_driver.h"
#include "device/cuda_handle_form.h"

CACHALOT_BEGIN

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
