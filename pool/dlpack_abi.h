// DLPack's structures as its ABI lays them out: as dlpack/dlpack.h of DLPack 1.1 describes them (github.com/dmlc/dlpack,
// Apache-2.0), as far as they are used here. Written down because distributions still ship 0.6, which has no
// DLManagedTensorVersioned; 1.2 and 1.3 lay them out alike. tests/pytorch/test_pools.py compares this with PyTorch's copy.
// Nothing that is installed includes this: a program that reads the structures takes DLPack's own header.
#pragma once

#include <cstdint>

#ifndef DLPACK_DLPACK_H_  // the standard header has been seen already

struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

enum DLDeviceType : std::int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };

struct DLDevice {
  DLDeviceType device_type;
  std::int32_t device_id;
};

enum DLDataTypeCode {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLFloat8_e8m0fnu = 14,
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;  // of one lane
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; before 1.2 null for dense row-major
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);  // may be null
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);  // may be null
  std::uint64_t flags;
  DLTensor dl_tensor;
};

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)

#endif
