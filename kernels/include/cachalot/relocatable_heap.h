/// @file
/// The allocations that may be moved: handles instead of pointers.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "cachalot/caching_allocator.h"
#include "cachalot/compact_report.h"
#include "cachalot/kernels.h"

CACHALOT_BEGIN_API

struct RelocatableBlock;
class RelocatableBlocks;

/// A Relocatable is the handle of an allocation of a RelocatableHeap. It frees the memory, in the
/// order of its stream, when it is destroyed.
///
/// Thread safety: one thread at a time uses a handle.
class Relocatable {
 public:
  /// Makes an empty handle.
  Relocatable();
  /// Takes the allocation over; `other` is empty afterwards.
  Relocatable(Relocatable&& other) noexcept;
  /// Frees the present allocation and takes the other one over; `other` is empty afterwards.
  Relocatable& operator=(Relocatable&& other) noexcept;
  /// Frees the allocation.
  ~Relocatable();

  /// Returns true unless the handle is empty.
  explicit operator bool() const { return block_ != nullptr; }
  /// Returns the address, valid until the next compact(); nullptr if empty.
  void* data() const;
  /// Returns the bytes asked for. Throws InvalidArgument if empty.
  std::size_t bytes() const;
  /// Returns the stream that the memory was allocated for. Throws InvalidArgument if empty.
  Stream stream() const;
  /// Declares that work queued on `other` uses the memory where it is now, as
  /// CachingAllocator::record_stream does. Work queued on `other` after a compact() must be
  /// declared again.
  /// Throws InvalidArgument if empty.
  void record_stream(Stream other);
  /// Frees the allocation now. Throws InvalidArgument if empty.
  void release();

 private:
  friend class RelocatableHeap;
  Relocatable(std::shared_ptr<RelocatableBlocks> owner, std::unique_ptr<RelocatableBlock> block);
  const RelocatableBlock& held(const char* call) const;

  std::shared_ptr<RelocatableBlocks> owner_;
  std::unique_ptr<RelocatableBlock> block_;
};

/// A RelocatableHeap allocates memory that it may move, so that live allocations can be brought
/// together and the memory between them can be given back to the device.
///
///     cachalot::RelocatableHeap heap(allocator);
///     cachalot::Relocatable weights = heap.allocate(bytes, stream);
///     kernel<<<grid, block, 0, stream>>>(static_cast<float*>(weights.data()));
///     ...
///     cachalot::CompactReport report = heap.compact();  // weights.data() may change
///
/// Thread safety: allocate and the destruction of handles may happen in any thread.
/// Errors: those of CachingAllocator::allocate.
class RelocatableHeap {
 public:
  /// Makes a heap. `mover` copies the memory and must be of that device; null: kernels_for(the
  /// device).
  /// Requires: `allocator` outlives the heap and its handles. Handles may outlive the heap.
  /// Throws InvalidArgument for a device that the allocator does not manage.
  explicit RelocatableHeap(CachingAllocator& allocator, int device = 0,
                           std::shared_ptr<Kernels> mover = nullptr);

  /// Returns an allocation of `bytes` bytes for work on `stream`.
  /// Throws InvalidArgument for 0 bytes, and as CachingAllocator::allocate.
  Relocatable allocate(std::size_t bytes, Stream stream = nullptr);

  /// Moves handles' memory out of the emptiest segments (over heap:pages: pages) into free blocks
  /// of fuller ones, and then gives cached memory back to the device (empty_cache).
  ///
  /// The copies are queued in the order of the memory's stream, one batch for each stream and pool.
  /// New places are free blocks that exist: the device gives no memory meanwhile. Segments of
  /// private pools and of streams that capture stay, as do segments that also hold other memory.
  /// With guard:True nothing moves. bytes_freed is the reserved bytes before, less those after.
  ///
  /// Requires:
  /// - No address from data() is kept over the call, neither by the program nor in a CUDA graph.
  /// - Work of other streams on the memory that is queued so far was declared by record_stream: the
  ///   memory's stream comes after it. What other streams queue later comes after the memory's
  ///   stream.
  /// - No other thread calls the heap or uses its handles meanwhile; nor do callbacks of the
  ///   allocator.
  ///
  /// After a CudaError some memory may have been moved; every handle is valid.
  CompactReport compact();

 private:
  std::shared_ptr<RelocatableBlocks> blocks_;
  std::shared_ptr<Kernels> mover_;
};

CACHALOT_END_API
