// What torch 2.14 asks of an allocator beyond 2.12.
#pragma once

#include "adapter/since_2_12.h"

namespace cachalot::torch_adapter {

class AllocatorSince2_14 : public AllocatorSince2_12 {
 public:
  using AllocatorSince2_12::AllocatorSince2_12;

  bool supportsUserMetadata() override { return true; }
};

}  // namespace cachalot::torch_adapter
