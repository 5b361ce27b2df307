/// @file
/// The owners of device memory: Allocation, OwnedArray, DeviceBuffer, Buffer, Scalar.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/errors.h"
#include "cachalot/span.h"

CACHALOT_BEGIN_API

/// Returns `count` * `element_bytes`.
/// Throws InvalidArgument, which names both, if a std::size_t does not hold the product.
/// Requires: `element_bytes` > 0.
inline std::size_t array_bytes(std::size_t count, std::size_t element_bytes) {
  if (count > std::numeric_limits<std::size_t>::max() / element_bytes) {
    throw InvalidArgument("an array of " + std::to_string(count) + " elements of " +
                          std::to_string(element_bytes) +
                          " bytes has more bytes than a std::size_t can hold");
  }
  return count * element_bytes;
}

/// A Deallocate is the deleter of an Allocation. It frees in the order of the stream that the
/// memory was allocated for. If the device refuses the free, it is retried later
/// (CachingAllocator::deallocate_when_possible).
struct Deallocate {
  /// The allocator of the memory. Requires: it exists when the memory is freed.
  CachingAllocator* allocator = nullptr;
  /// Frees `memory`.
  void operator()(void* memory) const noexcept { allocator->deallocate_when_possible(memory); }
};
/// An Allocation owns memory of a CachingAllocator and frees it when it is destroyed.
using Allocation = std::unique_ptr<void, Deallocate>;

/// An OwnedArray owns elements of type T in memory of a CachingAllocator. It constructs none, and
/// frees the memory when it is destroyed.
template <typename T>
using OwnedArray = std::unique_ptr<T[], Deallocate>;

/// Allocates as CachingAllocator::allocate does. Returns the owner of the memory.
inline Allocation allocate_owned(CachingAllocator& allocator, std::size_t bytes, int device,
                                 Stream stream) {
  return Allocation(allocator.allocate(bytes, device, stream), Deallocate{&allocator});
}

/// Allocates `count` uninitialized elements as CachingAllocator::allocate does. Returns their
/// owner.
/// Throws InvalidArgument if a std::size_t does not hold their bytes.
template <typename T>
OwnedArray<T> allocate_array(CachingAllocator& allocator, std::size_t count, int device = 0,
                             Stream stream = nullptr) {
  static_assert(std::is_trivially_destructible_v<T>, "an OwnedArray calls no destructors");
  void* const memory = allocator.allocate(array_bytes(count, sizeof(T)), device, stream);
  return OwnedArray<T>(static_cast<T*>(memory), Deallocate{&allocator});
}

/// A DeviceBuffer owns bytes of device memory, which it frees in the order of its stream when it is
/// destroyed. New bytes are uninitialized.
///
///     cachalot::DeviceBuffer buffer(allocator, 1 << 20, stream);
///     kernel<<<grid, block, 0, stream>>>(buffer.data());
///     buffer.resize(2 << 20);  // keeps the first 1 << 20 bytes
///     buffer.copy_to_host(host.data(), host.size());
///
/// Invariants: (1) size() <= capacity(); (2) data() is null if and only if capacity() is 0; (3)
/// without an allocator, capacity() is 0.
///
/// Streams: the buffer's copies and its free are in the order of stream(). Work on another stream
/// must be declared with CachingAllocator::record_stream, or by set_stream.
///
/// Lifetime: a buffer may be destroyed, or assigned to, after its allocator was destroyed (as at
/// the exit of the process); it then frees nothing, because the allocator gave the memory back.
/// Every other use requires the allocator. In a forked child the destructor does nothing.
///
/// A buffer that was made without an allocator or was moved from is empty. It may be assigned to,
/// destroyed and asked for its figures; everything else throws InvalidArgument.
///
/// Errors: InvalidArgument, OutOfMemory and CudaError; after each, the buffer is as before the
/// call.
/// Thread safety: one thread at a time.
class DeviceBuffer {
 public:
  /// Makes an empty buffer without an allocator.
  DeviceBuffer() noexcept = default;
  /// Makes a buffer of `bytes` uninitialized bytes of `device`, for work on `stream`.
  /// Throws InvalidArgument for a device that the allocator does not manage and for a stream of
  /// another device; OutOfMemory.
  explicit DeviceBuffer(CachingAllocator& allocator, std::size_t bytes = 0, Stream stream = nullptr,
                        int device = 0);
  /// Takes the memory of `other`, which is empty and without an allocator afterwards.
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  /// Frees the memory and takes that of `other`, as the constructor above.
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  /// Frees the memory, as reset does.
  ~DeviceBuffer() { reset(); }

  /// Returns the address of the first byte; nullptr without memory.
  void* data() const noexcept { return data_; }
  /// Returns the number of bytes in use.
  std::size_t size() const noexcept { return size_; }
  /// Returns the number of bytes up to which resize does not allocate.
  std::size_t capacity() const noexcept { return capacity_; }
  /// Returns true if size() is 0.
  bool is_empty() const noexcept { return size_ == 0; }
  /// Returns the stream in whose order the buffer is used and freed.
  Stream stream() const noexcept { return stream_; }
  /// Returns the index of the device.
  int device() const noexcept { return device_; }
  /// Returns the allocator; nullptr without one.
  CachingAllocator* allocator() const noexcept { return allocator_; }

  /// Makes size() `bytes`. Bytes that were in use before keep their values; new ones are
  /// uninitialized. Allocates, and queues a copy on the stream, if `bytes` > capacity(): data() is
  /// another address then.
  void resize(std::size_t bytes);
  /// Makes capacity() at least `bytes`, as resize does. size() stays.
  void reserve(std::size_t bytes);
  /// Makes capacity() equal to size(), by a copy to new memory if they differ.
  void shrink_to_fit();
  /// Makes `stream` the buffer's stream. Work queued on it from now on comes after the work queued
  /// so far on the old stream, and the memory is not reused before the work of both is done.
  /// Throws InvalidArgument for a stream of another device.
  void set_stream(Stream stream);
  /// Returns a buffer of the same size, stream and content. Queues the copy on the stream.
  DeviceBuffer clone() const;
  /// Frees the memory in the order of the stream. The buffer is empty, and keeps its allocator.
  void reset() noexcept;
  /// Returns the memory, which the caller must give to CachingAllocator::deallocate. The buffer is
  /// empty, and keeps its allocator.
  void* release() noexcept;

  /// @name Copies
  /// Each function copies `bytes` bytes, which may be 0, between memory of the caller and the
  /// buffer's bytes from `offset` on, after the work queued on the stream so far.
  /// Each throws InvalidArgument if the buffer does not have these bytes.
  /// @{

  /// Copies from host memory.
  /// Blocks: until the bytes are copied. Requires: the stream does not capture.
  void copy_from_host(const void* source, std::size_t bytes, std::size_t offset = 0);
  /// Copies to host memory.
  /// Blocks: until the bytes are copied. Requires: the stream does not capture.
  void copy_to_host(void* destination, std::size_t bytes, std::size_t offset = 0) const;
  /// Queues a copy from host memory.
  /// Requires: pinned memory stays as it is until the copy is done.
  /// Blocks: as Device::copy.
  void copy_from_host_async(const void* source, std::size_t bytes, std::size_t offset = 0);
  /// Queues a copy to host memory.
  /// Requires: pinned memory lives until the copy is done, and is read afterwards only.
  /// Blocks: as Device::copy.
  void copy_to_host_async(void* destination, std::size_t bytes, std::size_t offset = 0) const;
  /// Queues a copy from other memory of the same device.
  /// Requires: the ranges do not overlap; the work that writes `source` comes before, in the order
  /// of the stream.
  void copy_from_device(const void* source, std::size_t bytes, std::size_t offset = 0);
  /// @}

 private:
  Device& usable(const char* call) const;
  Device& usable(const char* call, std::size_t bytes, std::size_t offset) const;
  Address address(std::size_t offset) const;
  void move_to_memory_of(std::size_t bytes);
  void swap(DeviceBuffer& other) noexcept;

  CachingAllocator* allocator_ = nullptr;
  std::weak_ptr<const void> life_;  // of the allocator
  void* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  Stream stream_ = nullptr;
  int device_ = 0;
};

/// The name that RMM gives a class of this kind.
using device_buffer = DeviceBuffer;  // NOLINT(readability-identifier-naming)

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
