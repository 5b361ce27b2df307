// A Growth is where the memory of pools comes from when no free block serves, and where it goes back to: one strategy each for
// segments of the device's malloc (SegmentGrowth) and for pages (PageGrowth). Each pool has one; no other code asks which.
//
// Functions that take a Growing are the slow path, whose price is a driver call anyway.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/shared_memory.h"
#include "heap/heap_state.h"

namespace cachalot {

class Growth {
 public:
  Growth() = default;
  virtual ~Growth() = default;
  Growth(const Growth&) = delete;
  Growth& operator=(const Growth&) = delete;

  // --- a request ---

  // A free block of the request's arena that serves it.
  virtual Block* find(Request request, const Held& held) CACHALOT_HELD = 0;
  // The same of memory beside the arena's own that it may use at once.
  virtual Block* find_beside(Request request, const Held& held) CACHALOT_HELD;
  // Does whatever gets a block for the request. nullptr: neither the device nor the limit has room.
  virtual Block* obtain(Request request, const Context& context, Growing& growing) CACHALOT_GROWING = 0;
  // Whether an allocation may lie in several handles, so that a request for one in a single handle needs care.
  virtual bool may_scatter() const { return false; }
  // Of a block that was found or made for a request in one handle, that part: free, and not merged.
  virtual Block& cut_contiguous(Block& block, Request request, const Held& held) CACHALOT_HELD;
  // Whether small requests that find no free block lie between large ones, where nothing should be cached.
  virtual bool mixes_sizes() const { return false; }
  // Whether thread caches are on unless the option says otherwise.
  virtual bool caches_by_default() const { return false; }

  // --- giving back ---

  // Gives back the free memory of a pool, or of the default pools (null). Throws CudaError; the heap has what the device
  // refused.
  virtual void release_free(PrivatePool* owner, Growing& growing) CACHALOT_GROWING = 0;
  // Whether something of a pool without memory is left that the device has not taken back yet.
  virtual bool has_leftovers(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  // The pool goes: gives back its addresses.
  virtual void release_addresses(const PrivatePool& pool, Growing& growing) CACHALOT_GROWING;
  // At the end of the allocator: everything, live or not. Nobody else uses the heap any more.
  virtual void give_back_everything() noexcept = 0;

  // --- what others ask of a block's memory ---

  virtual bool is_expandable() const { return false; }  // in the sense of PyTorch's snapshots
  // In which kind's statistics the memory is reserved that a run of blocks lies in.
  virtual PoolKind reserved_in(const Block& head, const Held& held) const CACHALOT_HELD;
  virtual std::size_t asleep_bytes(Address begin, Address end, const Held& held) const CACHALOT_HELD;
  virtual std::size_t handle_count(const Block& block, const Held& held) const CACHALOT_HELD;
  // What other processes need to open the block, which lies in the segment at `base`.
  virtual SharedMemory share(const Block& block, Address base, Growing& growing) CACHALOT_GROWING = 0;
  // Where something is mapped that other GPUs need to be given access to.
  virtual std::vector<AddressRange> mapped_addresses(const Held& held) const CACHALOT_HELD;

  // --- checkpoints of private pools ---

  // Whether a segment may be longer than it was.
  virtual bool may_extend_segments() const { return false; }
  // Memory that small and large requests of the pool took from each other goes back. All blocks of the pool are free.
  virtual void separate_kinds(PrivatePool& pool, Growing& growing) CACHALOT_GROWING;

  // The first broken invariant, or "".
  virtual std::string validate(const Held& held) const CACHALOT_HELD;
  virtual std::size_t metadata_bytes(const Held& held) const CACHALOT_HELD;
};

}  // namespace cachalot
