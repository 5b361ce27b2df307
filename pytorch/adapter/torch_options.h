// torch's own reading of PYTORCH_CUDA_ALLOC_CONF as cachalot's options, so that what torch tolerates is tolerated.
#pragma once

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include <algorithm>

#include "cachalot/options.h"

namespace cachalot::torch_adapter {

// Settings that came after torch 2.10 keep their defaults where torch does not have them.
template <typename Common, typename Cuda>
void read_newer_settings(Options& options) {
  if constexpr (requires { Common::large_segment_size(); }) options.large_segment_size = Common::large_segment_size();
  if constexpr (requires { Cuda::throw_on_cudamalloc_oom(); })
    options.throw_on_cudamalloc_oom = Cuda::throw_on_cudamalloc_oom();
}

inline Options options_of_torch() {
  using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  Options options;
  read_newer_settings<Common, Cuda>(options);
  options.max_split_size = Common::max_split_size();
  options.max_non_split_rounding = Common::max_non_split_rounding_size();
  options.garbage_collection_threshold = Common::garbage_collection_threshold();
  const std::vector<std::size_t>& divisions = Common::roundup_power2_divisions();
  std::copy_n(divisions.begin(), std::min(divisions.size(), options.roundup_power2_divisions.size()),
              options.roundup_power2_divisions.begin());
  options.expandable_segments = Common::use_expandable_segments();
  options.per_process_memory_fraction = Cuda::per_process_memory_fraction();
  options.text = c10::CachingAllocator::getAllocatorSettings();
  return options;
}

}  // namespace cachalot::torch_adapter
