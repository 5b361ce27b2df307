// cudaDeviceGetLimit and cudaDeviceSetLimit: numbers that are kept. For some of them the driver holds memory.
#pragma once

#include <cstddef>
#include <map>

#include "simulator/abi.h"
#include "simulator/context_costs.h"

namespace cachalot::simulator {

class Limits {
 public:
  cudaError_t get(cudaLimit limit, std::size_t& value) const {
    const auto at = values_.find(limit);
    if (at == values_.end()) return cudaErrorUnsupportedLimit;
    value = at->second;
    return cudaSuccess;
  }
  cudaError_t set(cudaLimit limit, std::size_t value) {
    const auto at = values_.find(limit);
    if (at == values_.end()) return cudaErrorUnsupportedLimit;
    at->second = value;
    return cudaSuccess;
  }
  MemoryLimits of_memory() const {
    return {values_.at(cudaLimitStackSize), values_.at(cudaLimitMallocHeapSize), values_.at(cudaLimitPrintfFifoSize)};
  }

 private:
  // The driver's defaults.
  std::map<cudaLimit, std::size_t> values_{{cudaLimitStackSize, MemoryLimits{}.stack_bytes},
                                           {cudaLimitPrintfFifoSize, MemoryLimits{}.printf_bytes},
                                           {cudaLimitMallocHeapSize, MemoryLimits{}.heap_bytes},
                                           {cudaLimitDevRuntimeSyncDepth, 2},
                                           {cudaLimitDevRuntimePendingLaunchCount, 2048},
                                           {cudaLimitMaxL2FetchGranularity, 64},
                                           {cudaLimitPersistingL2CacheSize, 0}};
};

}  // namespace cachalot::simulator
