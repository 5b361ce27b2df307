// Pooled tensors for others, and others' tensors, without a copy: DLPack, https://dmlc.github.io/dlpack.
//
//   cachalot::PooledTensor tensor = pool.acquire(stream);
//   kernel<<<grid, block, 0, stream>>>(static_cast<float*>(tensor.data()));
//   tensor.share_with(their_stream);
//   DLManagedTensorVersioned* theirs = cachalot::to_dlpack(std::move(tensor));  // its deleter returns it to the pool
//
//   const cachalot::ForeignTensor foreign = cachalot::from_dlpack(managed);     // their deleter runs when this goes
//
// The structures are DLPack's own (dlpack/dlpack.h), of which this header needs only the names. All types of tensor_spec.h
// have a code there: bool since DLPack 0.8, the float8 types since 1.1, which is the version that exports carry. An older
// consumer refuses those.
//
// DLPack knows nothing of streams once a tensor has changed hands. Who exports says on which stream it will be used
// (PooledTensor::share_with); who imports orders his streams with the producer's, by the protocol that they have (in
// Python, __dlpack__(stream=…)).
//
// Thread safety: functions from any thread; a ForeignTensor is one thread's at a time. Deleters may be called in any
// thread, at any time: also when pool and allocator are gone. Errors: InvalidArgument, std::bad_alloc.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cachalot/tensor_pool.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace cachalot {

// The tensor's memory, for one consumer. It goes back to its pool when the deleter is called, to be called once.
// From then on a pool with a mover leaves it where it is.
// InvalidArgument for a tensor that is empty; after an error the tensor is held as before.
DLManagedTensorVersioned* to_dlpack(PooledTensor&& tensor);
// As consumers from before DLPack 1.0 take it.
DLManagedTensor* to_dlpack_unversioned(PooledTensor&& tensor);
// For several consumers: it goes back once all exports and all other owners of `tensor` are gone. The tensor's own methods
// are not for two threads at once.
DLManagedTensorVersioned* to_dlpack(std::shared_ptr<PooledTensor> tensor);
DLManagedTensor* to_dlpack_unversioned(std::shared_ptr<PooledTensor> tensor);

// Another library's tensor in the memory of a CUDA device. Its deleter is called once: by release(), or when this goes.
class ForeignTensor {
 public:
  ForeignTensor() = default;  // empty
  ForeignTensor(ForeignTensor&&) noexcept = default;
  ForeignTensor& operator=(ForeignTensor&&) noexcept = default;

  explicit operator bool() const { return managed_ != nullptr; }
  // Where the element with all indices 0 is; nullptr when empty.
  void* data() const { return managed_ == nullptr ? nullptr : data_; }
  const TensorSpec& spec() const { return spec_; }
  // Of each dimension, in elements.
  const std::vector<std::int64_t>& strides() const { return strides_; }
  // Dense and in row-major order, as the tensors of a pool are.
  bool is_contiguous() const;
  bool is_read_only() const { return is_read_only_; }
  // Hands it back now. InvalidArgument when empty.
  void release();

 private:
  friend ForeignTensor from_dlpack(DLManagedTensorVersioned* managed);
  friend ForeignTensor from_dlpack(DLManagedTensor* managed);
  template <typename Managed>
  static ForeignTensor take(Managed& managed, bool is_read_only);

  std::unique_ptr<void, void (*)(void* managed)> managed_ = {nullptr, nullptr};
  void* data_ = nullptr;
  TensorSpec spec_;
  std::vector<std::int64_t> strides_;
  bool is_read_only_ = false;
};

// Takes `managed` over. InvalidArgument, and it stays the caller's, for: null, a major version other than 1, a device other
// than kDLCUDA (pinned and managed memory included), a type that tensor_spec.h has not, vector types (lanes other than 1),
// extents below 1, null data or shape.
ForeignTensor from_dlpack(DLManagedTensorVersioned* managed);
ForeignTensor from_dlpack(DLManagedTensor* managed);

}  // namespace cachalot
