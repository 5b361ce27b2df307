// What torch 2.12 asks of an allocator beyond 2.11.
#pragma once

#include <exception>

#include "adapter/since_2_11.h"

namespace cachalot::torch_adapter {

class AllocatorSince2_12 : public AllocatorSince2_11 {
 public:
  using AllocatorSince2_11::AllocatorSince2_11;

  // Where the allocation was made, if history records it; null for any other pointer.
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) override {
    return as_torch([&] { return to_torch(plug_.context_of(ptr)); });
  }

  // torch's own allocator calls it on a thread of its own, some time later, and logs what it throws. Here it has been
  // called when the request fails.
  void attachOomRejectionObserver(cuda_caching::OomRejectionObserver observer) override {
    plug_.add_refusal_observer([observer = std::move(observer)](const RefusalReport& report) {
      try {
        observer(report.device, report.segment_bytes, report.held_bytes, report.total_bytes);
      } catch (const std::exception& error) {
        TORCH_WARN("Exception in OOM rejection observer: ", error.what());
      } catch (...) {
        TORCH_WARN("Unknown exception in OOM rejection observer");
      }
    });
  }
};

}  // namespace cachalot::torch_adapter
