// The slabs of a pool.
// Thread safety: none; the pool's mutex guards it, and the list of free slots.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "free_slots.h"
#include "slots.h"

CACHALOT_BEGIN

// The pool's slabs, but for those that are detached: they are on their way to the allocator, and may come back.
class SlabList {
 public:
  using Slabs = std::vector<std::unique_ptr<PoolSlab>>;

  explicit SlabList(FreeSlots& free) : free_(free) {}

  // Makes room for one more slab, beside the detached ones. Throws std::bad_alloc.
  void reserve_one();
  // Adds a new slab, all of whose slots are free. Requires: reserve_one(), and places for the slots in the list.
  void add(std::unique_ptr<PoolSlab> slab);

  // Takes out wholly free slabs, those made last first, while more than `keep` slots are free. Each comes back by
  // `reattach` or goes for good by `forget`. Requires: a recall lasts. Throws std::bad_alloc.
  Slabs detach_free(std::size_t keep);
  void reattach(std::unique_ptr<PoolSlab> slab);
  void forget(const PoolSlab& slab);

  Slabs::const_iterator begin() const { return slabs_.begin(); }
  Slabs::const_iterator end() const { return slabs_.end(); }
  std::size_t size_with_detached() const { return size_; }
  std::size_t metadata_bytes() const;  // beside its own size

 private:
  void count_free();

  FreeSlots& free_;
  Slabs slabs_;
  std::size_t size_ = 0;  // the detached ones included
};

CACHALOT_END
