/// @file
/// The exchange of tensors with other libraries, without a copy: DLPack,
/// https://dmlc.github.io/dlpack.
///
///     cachalot::PooledTensor tensor = pool.acquire(stream);
///     kernel<<<grid, block, 0, stream>>>(static_cast<float*>(tensor.data()));
///     tensor.share_with(their_stream);
///     // The deleter returns the tensor to its pool.
///     DLManagedTensorVersioned* theirs = cachalot::to_dlpack(std::move(tensor));
///
///     // The deleter runs when `foreign` is destroyed.
///     const cachalot::ForeignTensor foreign = cachalot::from_dlpack(managed);
///
/// Types: the structures are DLPack's own (dlpack/dlpack.h), of which this header needs the names
/// only. Every DType has a code in DLPack: bool since DLPack 0.8, the float8 types since 1.1.
/// Exports carry the version 1.1; an older consumer refuses those types.
///
/// Streams: DLPack itself orders no streams. The exporter says on which stream the tensor will be
/// used (PooledTensor::share_with). The importer orders its streams after the producer's, by the
/// protocol that both have (in Python, `__dlpack__(stream=...)`).
///
/// Thread safety: the functions may be called from any thread; a ForeignTensor is used by one
/// thread at a time. Deleters may be called in any thread at any time, also after pool and
/// allocator are destroyed.
/// Errors: InvalidArgument and std::bad_alloc.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cachalot/tensor_pool.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

CACHALOT_BEGIN_API

/// Returns the tensor's memory for one consumer. The tensor returns to its pool when the deleter
/// is called.
/// Requires: the consumer calls the deleter once.
/// Throws InvalidArgument for an empty tensor. After an error the tensor is as before.
DLManagedTensorVersioned* to_dlpack(PooledTensor&& tensor);
/// Returns the memory for a consumer from before DLPack 1.0; otherwise as to_dlpack.
DLManagedTensor* to_dlpack_unversioned(PooledTensor&& tensor);
/// Returns the memory for one of several consumers. The tensor returns to its pool once all exports
/// and all other owners of `tensor` are gone; otherwise as the function above.
/// Requires: the tensor's own methods are not called concurrently.
DLManagedTensorVersioned* to_dlpack(std::shared_ptr<PooledTensor> tensor);
/// Returns the memory for one of several consumers from before DLPack 1.0; otherwise as to_dlpack.
DLManagedTensor* to_dlpack_unversioned(std::shared_ptr<PooledTensor> tensor);

/// A ForeignTensor is a tensor of another library in the memory of a CUDA device. Its deleter is
/// called once: by release() or by the destructor.
class ForeignTensor {
 public:
  /// Makes an empty tensor.
  ForeignTensor() = default;
  /// Takes the tensor over; `other` is empty afterwards.
  ForeignTensor(ForeignTensor&& other) noexcept = default;
  /// Hands the present tensor back and takes the other one over; `other` is empty afterwards.
  ForeignTensor& operator=(ForeignTensor&& other) noexcept = default;

  /// Returns true unless the tensor is empty.
  explicit operator bool() const { return managed_ != nullptr; }
  /// Returns the address of the element with all indices 0; nullptr if empty.
  void* data() const { return managed_ == nullptr ? nullptr : data_; }
  /// Returns shape, element type and device.
  const TensorSpec& spec() const { return spec_; }
  /// Returns the stride of each dimension, in elements.
  const std::vector<std::int64_t>& strides() const { return strides_; }
  /// Returns true if the tensor is dense and in row-major order, as the tensors of a pool are.
  bool is_contiguous() const;
  /// Returns true if the tensor must not be written.
  bool is_read_only() const { return is_read_only_; }
  /// Hands the tensor back now. Throws InvalidArgument if it is empty.
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

/// Takes `managed` over.
/// Throws InvalidArgument, and `managed` stays the caller's, for
/// - null, or a major version other than 1;
/// - a device other than kDLCUDA, pinned and managed memory included;
/// - an element type without a DType, or with lanes other than 1;
/// - an extent below 1, a null shape or null data.
ForeignTensor from_dlpack(DLManagedTensorVersioned* managed);
/// Takes `managed`, of a producer from before DLPack 1.0, over; otherwise as the function above.
ForeignTensor from_dlpack(DLManagedTensor* managed);

CACHALOT_END_API
