// What torch 2.14 asks of an allocator beyond 2.13.
#pragma once

#include "adapter/since_2_13.h"

namespace cachalot::torch_adapter {

class AllocatorSince2_14 : public AllocatorSince2_13 {
 public:
  using AllocatorSince2_13::AllocatorSince2_13;

  bool supportsUserMetadata() override { return true; }

  void annotateMemory(const void* ptr, const std::string& metadata) override {
    as_torch([&] { plug_.annotate(ptr, Annotations::of_this_thread().current_with(metadata)); });
  }
};

}  // namespace cachalot::torch_adapter
