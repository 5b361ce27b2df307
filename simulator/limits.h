// cudaDeviceGetLimit and cudaDeviceSetLimit: numbers that are kept and change nothing.
#pragma once

#include <cstddef>
#include <map>

#include "simulator/abi.h"

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

 private:
  // The driver's defaults.
  std::map<cudaLimit, std::size_t> values_{{cudaLimitStackSize, 1024},
                                           {cudaLimitPrintfFifoSize, 7 << 20},
                                           {cudaLimitMallocHeapSize, 8 << 20},
                                           {cudaLimitDevRuntimeSyncDepth, 2},
                                           {cudaLimitDevRuntimePendingLaunchCount, 2048},
                                           {cudaLimitMaxL2FetchGranularity, 64},
                                           {cudaLimitPersistingL2CacheSize, 0}};
};

}  // namespace cachalot::simulator
