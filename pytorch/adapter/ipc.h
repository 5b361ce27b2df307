// Sharing memory between processes, in the byte format of PyTorch's own allocator, so that either end may be that one.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "adapter/conversions.h"
#include "adapter/ipc_bytes.h"
#include "cachalot/device.h"
#include "plug.h"

namespace cachalot::torch_adapter {

// The version that torch writes, as seen in 2.11 to 2.15.
inline constexpr char kIpcVersion = TORCH_VERSION_MINOR >= 13 ? 3 : 2;

// Copies the content of a storage on the current device into `memory`, which is the storage's from then on.
// Any stream may write to the memory before it, and use the new memory at once: so all work of the device is waited for.
inline void move_content(c10::StorageImpl& storage, c10::DataPtr memory) {
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  C10_CUDA_CHECK(cudaMemcpy(memory.get(), storage.data(), storage.nbytes(), cudaMemcpyDeviceToDevice));
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  storage.set_data_ptr_noswap(std::move(memory));
}

// ImportedSegments are other processes' memory. Bytes that arrive again, which are those of all tensors in the same handles, open it
// once, so that descriptors are fetched once; it is closed with the last tensor. Bytes of other handles, some of which are
// open, are the allocator's to recognize. Thread-safe.
class ImportedSegments {
 public:
  explicit ImportedSegments(Plug& plug) : plug_(plug) {}

  // On the current device, where its segment or first handle begins.
  std::shared_ptr<void> open(const std::string& bytes, c10::DeviceIndex device) {
    const SentMemory sent = as_torch([&] { return from_bytes(bytes, kIpcVersion); });
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = segments_.find(bytes);
    if (known != segments_.end()) {
      if (std::shared_ptr<void> segment = known->second.lock()) return segment;
    }
    const Plug::Sender sender{sent.process, sent.socket};
    void* const address = as_torch([&] { return plug_.open_sent(sent.memory, sender, device); });
    std::shared_ptr<void> segment(address, [this, bytes](void* opened) { close(opened, bytes); });
    segments_[bytes] = segment;
    return segment;
  }

 private:
  // Runs in a deleter, so it must not throw: at the end of the process CUDA may be gone already.
  void close(void* address, const std::string& bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = segments_.find(bytes);
    if (known != segments_.end() && known->second.expired()) segments_.erase(known);
    try {
      plug_.close_shared(address);
    } catch (const CudaError& error) {
      TORCH_WARN("cachalot: shared CUDA memory was not closed yet: ", error.what());
    }
  }

  Plug& plug_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> segments_;
};

}  // namespace cachalot::torch_adapter
