// A Growth gets the memory of pools from the device when no free block serves, and returns it. There is one strategy
// each for segments of the device's malloc (SegmentGrowth), segments of CUDA's pool (AsyncGrowth), segments of managed
// memory (ManagedGrowth) and pages (PageGrowth). Each pool has one; no other code asks which.
//
// Functions that take a Growing are the slow path, which costs a driver call anyway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/host_memory.h"
#include "cachalot/device.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

// The units that go back, and their bytes.
template <typename Unit>
struct ChosenUnits {
  Vector<Unit> units;
  std::size_t bytes = 0;
};

// A TrimGoal says how much cached memory a growth gives back without waiting for the device. Its units (segments, or
// handles) differ in size.
struct TrimGoal {
  std::size_t bytes = 0;
  bool may_exceed = false;  // if true, at least `bytes`, by as little as possible; otherwise at most

  // Returns those of `units` to give back, of which `size_of` tells the bytes: the largest first, since these take the
  // fewest calls.
  template <typename Unit, typename SizeOf>
  ChosenUnits<Unit> choose(const Vector<Unit>& units, SizeOf size_of) const;

 private:
  // Returns the indices of the units with these sizes.
  std::vector<std::size_t> choose_of(const std::vector<std::size_t>& sizes) const;
};

template <typename Unit, typename SizeOf>
ChosenUnits<Unit> TrimGoal::choose(const Vector<Unit>& units, SizeOf size_of) const {
  std::vector<std::size_t> sizes;
  sizes.reserve(units.size());
  for (const Unit& unit : units) sizes.push_back(size_of(unit));
  ChosenUnits<Unit> chosen;
  for (const std::size_t index : choose_of(sizes)) {
    chosen.units.push_back(units[index]);
    chosen.bytes += sizes[index];
  }
  return chosen;
}

// A Rung is one step of a search of memory for a request. The step returns a block or null, and may release the lock.
template <typename Search>
struct Rung {
  Block* (Search::*step)(Growing& growing);
  // The longest wait of the step; a step of OomWait::never gives no memory back either. The others are not taken while a graph is
  // captured, nor where the option oom_wait forbids the wait.
  OomWait waits_for = OomWait::never;
};

// Tries the rungs in their order until one returns a block. Returns null if none does, and where a capture forbids the next.
template <typename Search, std::size_t count>
Block* climb(const Rung<Search> (&rungs)[count], Search& search, const HeapState& state,
             Growing& growing) CACHALOT_GROWING {
  for (const Rung<Search>& rung : rungs) {
    if (rung.waits_for != OomWait::never && state.capturing(growing)) return nullptr;
    if (rung.waits_for > state.options.oom_wait) continue;
    if (Block* const block = (search.*rung.step)(growing)) return block;
  }
  return nullptr;
}

// A Reservation says whether memory of CachingAllocator::reserve that no stream has used goes back with other free memory.
enum class Reservation : std::uint8_t { stays, goes };

// Thrown where the option throw_on_cudamalloc_oom refuses a request; Supply catches it.
struct Refused {};

class Growth {
 public:
  Growth() = default;
  virtual ~Growth() = default;
  Growth(const Growth&) = delete;
  Growth& operator=(const Growth&) = delete;

  // --- a request ---

  // Returns a free block of the request's arena that serves it, or null.
  virtual Block* find(Request request, const Held& held) CACHALOT_HELD = 0;
  // Returns a free block beside the arena's own that the request may use at once, or null.
  virtual Block* find_beside(Request request, const Held& held) CACHALOT_HELD;
  // Gets a block for the request by all steps of the strategy. Returns null if neither the device nor the limit has
  // room.
  virtual Block* obtain(Request request, const Context& context, Growing& growing) CACHALOT_GROWING = 0;
  // Returns true if an allocation may lie in several handles, so that a request for one handle needs care.
  virtual bool may_scatter() const { return false; }
  // Cuts the part that lies in one handle out of a block that was found or made for such a request. The part is free
  // and not merged.
  virtual Block& cut_contiguous(Block& block, Request request, const Held& held) CACHALOT_HELD;
  // Returns true if small blocks lie between large ones when small requests find no free block: nothing should be
  // cached then.
  virtual bool mixes_sizes() const { return false; }
  // Returns true if thread caches are on unless the option says otherwise.
  virtual bool caches_by_default() const { return false; }

  // --- giving back ---

  // Returns the free memory of a pool, or of the default pools (null), to the device. Throws CudaError; the heap keeps
  // what the device refused.
  virtual void release_free(PrivatePool* owner, Reservation reservation, Growing& growing) CACHALOT_GROWING = 0;
  // Returns free memory of the default pools to the device without waiting for its work, as the goal says and as far as
  // that is possible. Returns the bytes. Throws CudaError; the heap keeps what the device refused.
  virtual std::size_t trim(const TrimGoal& goal, Growing& growing) CACHALOT_GROWING = 0;
  // Returns true if the device has not taken back everything of a pool without memory.
  virtual bool has_leftovers(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  // Returns the addresses of a pool that is about to be erased.
  virtual void release_addresses(const PrivatePool& pool, Growing& growing) CACHALOT_GROWING;
  // Returns everything to the device, live or not, at the end of the allocator. Requires that no other thread uses the
  // heap.
  virtual void give_back_everything() noexcept = 0;

  // Gets memory from the device that no stream has used: it is free, in the default pools, in arenas of
  // `StreamKey::nobody()`. Returns false, and may have got a part, if neither the device nor the limit has room.
  virtual bool add_unused(std::size_t bytes, Growing& growing) CACHALOT_GROWING = 0;

  // --- queries about a block's memory ---

  virtual bool is_expandable() const { return false; }  // in the sense of PyTorch's snapshots
  // Returns a sentence for the message of an out-of-memory error, with a space before it: "" if all memory is the
  // device's, so that its figures explain the error.
  virtual std::string_view where_memory_lies() const { return ""; }
  // Returns the kind whose statistics count the memory of a run of blocks as reserved.
  virtual PoolKind reserved_in(const Block& head, const Held& held) const CACHALOT_HELD;
  virtual std::size_t asleep_bytes(Address begin, Address end, const Held& held) const CACHALOT_HELD;
  virtual std::size_t handle_count(const Block& block, const Held& held) const CACHALOT_HELD;
  // Returns what other processes need to open the block, which lies in the segment at `base`.
  virtual SharedMemory share(const Block& block, Address base, Growing& growing) CACHALOT_GROWING = 0;
  // Returns the mapped ranges that other GPUs need access to.
  virtual std::vector<AddressRange> mapped_addresses(const Held& held) const CACHALOT_HELD;

  // --- checkpoints of private pools ---

  // Returns true if a segment may become longer.
  virtual bool may_extend_segments() const { return false; }
  // Returns memory that small and large requests of the pool took from each other. Requires that all its blocks are
  // free.
  virtual void separate_kinds(PrivatePool& pool, Growing& growing) CACHALOT_GROWING;

  // Returns the first broken invariant, or "".
  virtual std::string validate(const Held& held) const CACHALOT_HELD;
  virtual std::size_t metadata_bytes(const Held& held) const CACHALOT_HELD;
};

CACHALOT_END
