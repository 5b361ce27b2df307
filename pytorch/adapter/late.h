// cachalot as torch's allocator from some moment on: what the allocator before it had handed out by then stays that one's.
#pragma once

#include "adapter/torch_allocator.h"

namespace cachalot::torch_adapter {

// Tensors know by their deleter whose they are; bare pointers and pools are looked up, and handed on to the former
// allocator where they are not ours. Its memory comes back with empty_cache, and when ours runs out.
template <typename Base>
class Late final : public Base {
 public:
  Late(Plug& plug, cuda_caching::CUDAAllocator& former) : Base(plug), former_(former) {}

  void raw_delete(void* ptr) override { is_ours(ptr) ? this->free(ptr) : former_.raw_delete(ptr); }

  using Base::recordStream;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override {
    if (ptr.get_deleter() == former_.raw_deleter()) return former_.recordStream(ptr, stream);
    Base::recordStream(ptr, stream);
  }
  void* getBaseAllocation(void* ptr, std::size_t* size) override {
    return is_ours(ptr) ? Base::getBaseAllocation(ptr, size) : former_.getBaseAllocation(ptr, size);
  }
  cuda_caching::ShareableHandle shareIpcHandle(void* ptr) override {
    return is_ours(ptr) ? Base::shareIpcHandle(ptr) : former_.shareIpcHandle(ptr);
  }

  // Virtual since torch 2.12 and 2.14.
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) {
    const auto ask = [ptr](auto& allocator) { return allocator.getContextForPointer(ptr); };
    if constexpr (requires(Base & base) { base.getContextForPointer(ptr); })
      return is_ours(ptr) ? Base::getContextForPointer(ptr) : ask(former_);
    return nullptr;
  }
  void annotateMemory(const void* ptr, const std::string& metadata) {
    const auto annotate = [&](auto& allocator) { allocator.annotateMemory(ptr, metadata); };
    if constexpr (requires(Base & base) { base.annotateMemory(ptr, metadata); })
      is_ours(ptr) ? Base::annotateMemory(ptr, metadata) : annotate(former_);
  }

  void emptyCache(MempoolId_t pool) override {
    former_.emptyCache(pool);
    Base::emptyCache(pool);
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    if (!is_ours(device, pool)) return former_.endAllocateToPool(device, pool);
    Base::endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    if (!is_ours(device, pool)) return former_.releasePool(device, pool);
    Base::releasePool(device, pool);
  }

 protected:
  void* allocate_memory(DeviceIndex device, std::size_t bytes, cudaStream_t stream) override {
    try {
      return Base::allocate_memory(device, bytes, stream);
    } catch (const OutOfMemory&) {
      former_.emptyCache({0, 0});
      return Base::allocate_memory(device, bytes, stream);
    }
  }

 private:
  bool is_ours(const void* ptr) const { return this->plug_.device_of(ptr) >= 0; }
  bool is_ours(DeviceIndex device, MempoolId_t pool) const {
    return this->plug_.pool_use_count(device, to_pool_id(pool)) > 0;
  }

  cuda_caching::CUDAAllocator& former_;
};

}  // namespace cachalot::torch_adapter
