/// @file
/// The owners of an array and of one value in device memory.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "cachalot/array_bytes.h"
#include "cachalot/device_buffer.h"
#include "cachalot/span.h"

CACHALOT_BEGIN_API

/// A Buffer owns an array of `T` in device memory: a DeviceBuffer whose sizes count elements. New
/// elements are uninitialized.
///
///     cachalot::Buffer<float> weights(allocator, 1024, stream);
///     weights.copy_from_host(values);        // a std::vector, an array, a Span
///     kernel<<<grid, block, 0, stream>>>(weights.data(), weights.size());
///     std::vector<float> result = weights.to_host();
///
/// Streams, lifetime, moves, errors and thread safety are those of DeviceBuffer. Sizes whose bytes
/// a std::size_t does not hold throw InvalidArgument.
template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "a Buffer copies its elements byte by byte: T must be trivially copyable");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "T is without const and volatile");
  static_assert(alignof(T) <= kUsualAlignment, "device memory is aligned to 512 bytes");

 public:
  using value_type = T;  ///< the type of an element

  /// Makes an empty buffer without an allocator.
  Buffer() noexcept = default;
  /// Makes a buffer of `count` uninitialized elements on `device`, for work on `stream`.
  explicit Buffer(CachingAllocator& allocator, std::size_t count = 0, Stream stream = nullptr,
                  int device = 0)
      : memory_(allocator, array_bytes(count, sizeof(T)), stream, device) {}
  /// Makes a buffer with a copy of elements of the host. Blocks: until they are copied.
  Buffer(CachingAllocator& allocator, Span<const T> elements, Stream stream = nullptr,
         int device = 0)
      : Buffer(allocator, elements.size(), stream, device) {
    copy_from_host(elements);
  }

  /// Returns the address of the first element; nullptr without memory.
  T* data() const noexcept { return static_cast<T*>(memory_.data()); }
  /// Returns the number of elements.
  std::size_t size() const noexcept { return memory_.size() / sizeof(T); }
  /// Returns the number of bytes of the elements.
  std::size_t size_bytes() const noexcept { return memory_.size(); }
  /// Returns the number of elements up to which resize does not allocate.
  std::size_t capacity() const noexcept { return memory_.capacity() / sizeof(T); }
  /// Returns true if size() is 0.
  bool is_empty() const noexcept { return memory_.is_empty(); }
  /// Returns the stream in whose order the buffer is used and freed.
  Stream stream() const noexcept { return memory_.stream(); }
  /// Returns the index of the device.
  int device() const noexcept { return memory_.device(); }
  /// Returns the allocator; nullptr without one.
  CachingAllocator* allocator() const noexcept { return memory_.allocator(); }
  /// Returns a view of the elements, whose addresses are the device's: the host must not read them.
  Span<T> device_span() const noexcept { return {data(), size()}; }

  /// Makes size() `count`, as DeviceBuffer::resize does.
  void resize(std::size_t count) { memory_.resize(array_bytes(count, sizeof(T))); }
  /// Makes capacity() at least `count`, as DeviceBuffer::reserve does.
  void reserve(std::size_t count) { memory_.reserve(array_bytes(count, sizeof(T))); }
  /// Makes capacity() equal to size().
  void shrink_to_fit() { memory_.shrink_to_fit(); }
  /// Makes `stream` the buffer's stream, as DeviceBuffer::set_stream does.
  void set_stream(Stream stream) { memory_.set_stream(stream); }
  /// Returns a buffer of the same size, stream and content. Queues the copy on the stream.
  Buffer clone() const {
    Buffer copy;
    copy.memory_ = memory_.clone();
    return copy;
  }
  /// Frees the memory in the order of the stream. The buffer is empty, and keeps its allocator.
  void reset() noexcept { memory_.reset(); }
  /// Returns the elements, whose memory the caller must give to CachingAllocator::deallocate.
  T* release() noexcept { return static_cast<T*>(memory_.release()); }
  /// Returns the memory as a DeviceBuffer of size_bytes() bytes. The buffer is as moved from.
  DeviceBuffer release_buffer() noexcept { return std::move(memory_); }

  /// @name Copies
  /// As those of DeviceBuffer, of elements: `first` is the index of the first of them.
  /// @{

  /// Copies elements of the host to this buffer. Blocks: until they are copied.
  void copy_from_host(Span<const T> elements, std::size_t first = 0) {
    memory_.copy_from_host(elements.data(), elements.size() * sizeof(T), offset_of(first));
  }
  /// Copies elements of this buffer to the host, as many as fit. Blocks: until they are copied.
  void copy_to_host(Span<T> elements, std::size_t first = 0) const {
    memory_.copy_to_host(elements.data(), elements.size() * sizeof(T), offset_of(first));
  }
  /// Queues a copy from pinned host memory, as DeviceBuffer::copy_from_host_async does.
  void copy_from_host_async(Span<const T> elements, std::size_t first = 0) {
    memory_.copy_from_host_async(elements.data(), elements.size() * sizeof(T), offset_of(first));
  }
  /// Queues a copy to pinned host memory, as DeviceBuffer::copy_to_host_async does.
  void copy_to_host_async(Span<T> elements, std::size_t first = 0) const {
    memory_.copy_to_host_async(elements.data(), elements.size() * sizeof(T), offset_of(first));
  }
  /// Queues a copy of other elements of the same device, as DeviceBuffer::copy_from_device does.
  void copy_from_device(Span<const T> elements, std::size_t first = 0) {
    memory_.copy_from_device(elements.data(), elements.size() * sizeof(T), offset_of(first));
  }
  /// Returns a copy of all elements. Blocks: until they are copied.
  std::vector<T> to_host() const {
    std::vector<T> elements(size());
    copy_to_host(elements);
    return elements;
  }
  /// Returns a copy of element `index`. Blocks: until it is copied.
  T element(std::size_t index) const {
    T value;
    copy_to_host({&value, 1}, index);
    return value;
  }
  /// Sets element `index`. Blocks: until it is copied.
  void set_element(std::size_t index, const T& value) { copy_from_host({&value, 1}, index); }
  /// @}

 private:
  static std::size_t offset_of(std::size_t index) { return array_bytes(index, sizeof(T)); }

  DeviceBuffer memory_;
};

/// A Scalar owns one value of type `T` in device memory.
///
///     cachalot::Scalar<int> total(allocator, 0, stream);
///     sum<<<grid, block, 0, stream>>>(in, n, total.data());
///     int result = total.value();  // waits for the stream
///
/// Streams, lifetime, moves, errors and thread safety are those of DeviceBuffer.
template <typename T>
class Scalar {
 public:
  using value_type = T;  ///< the type of the value

  /// Makes an uninitialized value on `device`, for work on `stream`.
  explicit Scalar(CachingAllocator& allocator, Stream stream = nullptr, int device = 0)
      : memory_(allocator, 1, stream, device) {}
  /// Makes the value `value`. Blocks: until it is copied.
  Scalar(CachingAllocator& allocator, const T& value, Stream stream, int device = 0)
      : Scalar(allocator, stream, device) {
    set_value(value);
  }

  /// Returns the address of the value; nullptr if the scalar was moved from.
  T* data() const noexcept { return memory_.data(); }
  /// Returns the stream in whose order the scalar is used and freed.
  Stream stream() const noexcept { return memory_.stream(); }
  /// Makes `stream` the scalar's stream, as DeviceBuffer::set_stream does.
  void set_stream(Stream stream) { memory_.set_stream(stream); }
  /// Returns a copy of the value. Blocks: until the work queued on the stream so far is done.
  T value() const { return memory_.element(0); }
  /// Sets the value. Blocks: until the work queued on the stream so far is done.
  void set_value(const T& value) { memory_.set_element(0, value); }
  /// Queues a copy of `value`, which the caller keeps, in pinned memory, until the copy is done.
  void set_value_async(const T& value) { memory_.copy_from_host_async({&value, 1}); }
  /// Queues a copy to `value`, in pinned memory, which is read once the copy is done.
  void value_async(T& value) const { memory_.copy_to_host_async({&value, 1}); }

 private:
  Buffer<T> memory_;
};

/// The name that RMM's users expect of a Buffer.
template <typename T>
using buffer = Buffer<T>;  // NOLINT(readability-identifier-naming)
/// The name that RMM's users expect of a Scalar.
template <typename T>
using scalar = Scalar<T>;  // NOLINT(readability-identifier-naming)

CACHALOT_END_API
