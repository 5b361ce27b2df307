// Sharing memory between processes, in the byte format of PyTorch's own allocator, so that either end may be that one.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <torch/version.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace cachalot::torch_adapter {

// The bytes are: the format's version, a kind, then for kind 'c' the 64 bytes of a cudaIpcMemHandle_t of the segment.
// Kind 'e' is an expandable segment's. What torch 2.11 to 2.15 write was looked at; 2.13 changed the version alone.
inline constexpr char kIpcVersion = TORCH_VERSION_MINOR >= 13 ? 3 : 2;
inline constexpr char kIpcSegment = 'c';
inline constexpr char kIpcExpandable = 'e';

// `may_be_virtual`: whether it may be memory of the page heap, which CUDA refuses as an invalid value.
inline std::string export_segment(void* segment, bool may_be_virtual) {
  cudaIpcMemHandle_t handle;
  const cudaError_t error = cudaIpcGetMemHandle(&handle, segment);
  if (error == cudaErrorInvalidValue && may_be_virtual) {
    (void)cudaGetLastError();
    TORCH_CHECK(false,
                "memory of cachalot's page heap cannot be shared between processes in this version: use heap:segments "
                "(expandable_segments:False) in the process that shares");
  }
  C10_CUDA_CHECK(error);
  std::string bytes{kIpcVersion, kIpcSegment};
  bytes.append(reinterpret_cast<const char*>(&handle), sizeof(handle));
  return bytes;
}

inline cudaIpcMemHandle_t parse_segment(const std::string& bytes) {
  TORCH_CHECK(bytes.size() >= 2, "a shared CUDA memory handle of ", bytes.size(), " bytes: it has at least 2");
  TORCH_CHECK(bytes[0] == kIpcVersion, "a shared CUDA memory handle of version ", static_cast<int>(bytes[0]),
              ": this version reads ", static_cast<int>(kIpcVersion), " (are both processes' torch of one version?)");
  TORCH_CHECK(bytes[1] != kIpcExpandable,
              "a shared CUDA memory handle of an expandable segment: this version cannot open it; set "
              "expandable_segments:False in the sending process");
  TORCH_CHECK(bytes[1] == kIpcSegment, "a shared CUDA memory handle of kind ", static_cast<int>(bytes[1]),
              ": it is one of 'c' and 'e'");
  cudaIpcMemHandle_t handle;
  TORCH_CHECK(bytes.size() == 2 + sizeof(handle), "a shared CUDA memory handle of ", bytes.size(),
              " bytes: kind 'c' has ", 2 + sizeof(handle));
  std::memcpy(&handle, bytes.data() + 2, sizeof(handle));
  return handle;
}

// Other processes' segments, each opened once however many tensors of it arrive, and closed with the last of them.
// Thread-safe.
class ImportedSegments {
 public:
  std::shared_ptr<void> open(const std::string& bytes) {
    const cudaIpcMemHandle_t handle = parse_segment(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    std::weak_ptr<void>& known = segments_[bytes];
    if (std::shared_ptr<void> segment = known.lock()) return segment;
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* address = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess));
    std::shared_ptr<void> segment(address, [this, bytes, device](void* opened) { close(opened, bytes, device); });
    known = segment;
    return segment;
  }

 private:
  // Runs in a deleter, so it must not throw: at the end of the process CUDA may be gone already.
  void close(void* address, const std::string& bytes, c10::DeviceIndex device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = segments_.find(bytes);
    if (known != segments_.end() && known->second.expired()) segments_.erase(known);
    c10::DeviceIndex current = 0;
    if (c10::cuda::GetDevice(&current) != cudaSuccess) return;
    C10_CUDA_CHECK_WARN(c10::cuda::SetDevice(device));
    C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(address));
    C10_CUDA_CHECK_WARN(c10::cuda::SetDevice(current));
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> segments_;
};

}  // namespace cachalot::torch_adapter
