// What torch brings to a private pool, and takes from it.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "adapter/conversions.h"
#include "plug.h"

namespace cachalot::torch_adapter {

// The segments of a private pool come from another torch allocator (MemPool(allocator)).
class TorchSegments final : public SegmentProvider {
 public:
  explicit TorchSegments(std::shared_ptr<cuda_caching::CUDAAllocator> allocator) : allocator_(std::move(allocator)) {}

  // raw_alloc_with_stream of the current device. A provider that throws torch.OutOfMemoryError has no memory, either.
  std::optional<Address> allocate_segment(std::size_t bytes, int device, Stream stream) override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    try {
      void* const segment = allocator_->raw_alloc_with_stream(bytes, stream);
      if (segment == nullptr) return std::nullopt;
      return reinterpret_cast<Address>(segment);
    } catch (const c10::OutOfMemoryError&) {
      return std::nullopt;
    }
  }
  void free_segment(Address address, std::size_t, int device, Stream) override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    allocator_->raw_delete(reinterpret_cast<void*>(address));
  }

 private:
  std::shared_ptr<cuda_caching::CUDAAllocator> allocator_;
};

// Returns whether a graph's capture redirects. torch says nothing of why it redirects; a graph's filter is a lambda of
// CUDAGraph::capture_begin, and every other one redirects a thread or a stream outside of captures.
inline bool is_graph_capture(const std::function<bool(cudaStream_t)>& filter) {
  return std::string_view(filter.target_type().name()).find("CUDAGraph") != std::string_view::npos;
}

// The state of a pool, for torch to keep.
struct Checkpoint final : cuda_caching::AllocatorState {
  explicit Checkpoint(PoolCheckpoint taken) : pool(std::move(taken)) {}
  PoolCheckpoint pool;
};

}  // namespace cachalot::torch_adapter
