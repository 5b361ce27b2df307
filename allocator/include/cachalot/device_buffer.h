/// @file
/// The owner of device memory that has a size, a stream and copies.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

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

CACHALOT_END_API
