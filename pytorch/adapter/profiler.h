// Reports to torch's memory profiler.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

#include "adapter/errors.h"
#include "plug.h"

namespace cachalot::torch_adapter {

class Profiler {
 public:
  explicit Profiler(Plug& plug) : plug_(plug) {}

  void report_allocation(void* ptr, c10::DeviceIndex device) const {
    if (plug_.device_of(ptr) < 0) return;  // allocated with caching off: torch's own does not report it, either
    report(ptr, device, static_cast<std::int64_t>(plug_.allocation(ptr).allocated_bytes));
  }
  void report_out_of_memory(std::size_t bytes, c10::DeviceIndex device) const {
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), plug_.memory_allocated(device),
                                     plug_.memory_reserved(device), c10::Device(c10::kCUDA, device));
  }
  // Frees the memory and reports it.
  void free(void* ptr) const {
    const int device = plug_.device_of(ptr);
    const std::size_t bytes = device < 0 ? 0 : plug_.allocation(ptr).allocated_bytes;
    as_torch([&] { plug_.deallocate(ptr); });
    if (device >= 0) report(ptr, static_cast<c10::DeviceIndex>(device), -static_cast<std::int64_t>(bytes));
  }

 private:
  void report(void* ptr, c10::DeviceIndex device, std::int64_t change) const {
    c10::reportMemoryUsageToProfiler(ptr, change, plug_.memory_allocated(device), plug_.memory_reserved(device),
                                     c10::Device(c10::kCUDA, device));
  }

  Plug& plug_;
};

}  // namespace cachalot::torch_adapter
