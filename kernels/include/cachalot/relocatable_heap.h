// Allocations that may be moved: handles instead of pointers, so that live ones can be brought together and the memory
// between them given back to the device.
//
//   cachalot::RelocatableHeap heap(allocator);
//   cachalot::Relocatable weights = heap.allocate(bytes, stream);
//   kernel<<<grid, block, 0, stream>>>(static_cast<float*>(weights.data()));
//   …
//   cachalot::CompactReport report = heap.compact();  // weights.data() may be another address now
//
// What the owner of a handle owes: no address from data() is kept over a compact(), and not in a CUDA graph either;
// what other streams do with the memory is ordered before and after that: by compact() its stream comes after their
// work queued so far, and what they queue later comes after its stream.
//
// Thread safety: allocate, and handles' ends, from any thread; a handle is one thread's at a time. While compact() runs
// nobody else calls the heap or touches its handles (callbacks of the allocator included).
// Errors: those of CachingAllocator::allocate, and InvalidArgument.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "cachalot/caching_allocator.h"
#include "cachalot/compact_report.h"
#include "cachalot/kernels.h"

namespace cachalot {

struct RelocatableBlock;
class RelocatableBlocks;

// Memory that is freed, in the order of its stream, when this goes.
class Relocatable {
 public:
  Relocatable();  // empty
  Relocatable(Relocatable&& other) noexcept;
  Relocatable& operator=(Relocatable&& other) noexcept;
  ~Relocatable();

  explicit operator bool() const { return block_ != nullptr; }
  void* data() const;  // until the next compact(); null when empty
  // InvalidArgument from each of these when empty.
  std::size_t bytes() const;  // as asked for
  Stream stream() const;
  // As CachingAllocator::record_stream, of where it is now: work that `other` gets after a compact() is recorded anew.
  void record_stream(Stream other);
  // Frees it now.
  void release();

 private:
  friend class RelocatableHeap;
  Relocatable(std::shared_ptr<RelocatableBlocks> owner, std::unique_ptr<RelocatableBlock> block);
  const RelocatableBlock& held(const char* call) const;

  std::shared_ptr<RelocatableBlocks> owner_;
  std::unique_ptr<RelocatableBlock> block_;
};

class RelocatableHeap {
 public:
  // `allocator` outlives the heap and its handles; handles may outlive the heap. InvalidArgument for a device that the
  // allocator has not. `mover` is of that device; null: kernels_for(it).
  explicit RelocatableHeap(CachingAllocator& allocator, int device = 0, std::shared_ptr<Kernels> mover = nullptr);

  // `bytes` > 0, for work on `stream`.
  Relocatable allocate(std::size_t bytes, Stream stream = nullptr);

  // Moves handles' memory out of the emptiest segments (over the page heap: pages) into free blocks of fuller ones, and
  // then gives back to the device whatever it may (empty_cache). The copies are queued, one batch a stream and pool, in
  // the order of the memory's stream. Segments stay where something else lives, too, as do those of private pools and
  // of streams that capture. The device gives nothing meanwhile: new places are free blocks that are there already.
  // bytes_freed is what is reserved before, less what is afterwards. With guard:True nothing moves.
  // After a CudaError some memory may have been moved; every handle is valid.
  CompactReport compact();

 private:
  std::shared_ptr<RelocatableBlocks> blocks_;
  std::shared_ptr<Kernels> mover_;
};

}  // namespace cachalot
