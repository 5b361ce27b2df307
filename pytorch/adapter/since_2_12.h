// What torch 2.12 asks of an allocator beyond 2.11.
#pragma once

#include "adapter/since_2_11.h"

namespace cachalot::torch_adapter {

class AllocatorSince2_12 : public AllocatorSince2_11 {
 public:
  using AllocatorSince2_11::AllocatorSince2_11;

  // cachalot rejects no request before it has asked the device: there is nothing to observe.
  void attachOomRejectionObserver(cuda_caching::OomRejectionObserver) override {}
};

}  // namespace cachalot::torch_adapter
