// Moves tensors in use together, so that more slabs are wholly free.
//
// The slabs with the fewest tensors are chosen, as many as the free slots beyond `keep` can make up for. Each tensor in
// them gets a free slot elsewhere, last used on its own stream if there is such a slot. The tensors of one stream need
// one call of the mover.
//
// Thread safety: no other thread uses the pool meanwhile. Takes the pool's mutex, and lets it go around calls of the
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "cachalot/compact_report.h"
#include "pool_books.h"
#include "slots.h"

CACHALOT_BEGIN

class PoolCompaction {
 public:
  explicit PoolCompaction(PoolBooks& books) : books_(books) {}

  // Moves tensors, and returns free slabs to the allocator while more than `keep` slots are free. To be called once.
  // After an error each tensor is where it was, or whole in its new place.
  CompactReport run(std::size_t keep) CACHALOT_EXCLUDES(books_.mutex);

 private:
  struct Relocation {
    PoolSlot* from;
    PoolSlot* to;
    bool is_in_order = false;  // the tensor's stream comes after all other work on both
  };

  void move_together(std::size_t keep) CACHALOT_REQUIRES(books_.mutex);
  std::vector<PoolSlab*> sparse_slabs(std::size_t keep) CACHALOT_REQUIRES(books_.mutex);
  void choose_tensors(const std::vector<PoolSlab*>& slabs) CACHALOT_REQUIRES(books_.mutex);
  void move_tensors() CACHALOT_REQUIRES(books_.mutex);
  void move_tensors_of_a_stream(std::span<PoolSlot* const> tensors) CACHALOT_REQUIRES(books_.mutex);
  std::vector<Relocation> choose_places(std::span<PoolSlot* const> tensors) CACHALOT_REQUIRES(books_.mutex);
  void keep_those_in_order(std::vector<Relocation>& relocations, StreamKey stream) CACHALOT_REQUIRES(books_.mutex);
  void assign_place(const Relocation& relocation, StreamKey stream) CACHALOT_REQUIRES(books_.mutex);
  void put_users_before(std::span<Relocation> relocations, StreamKey stream, std::uint64_t& waits);
  void copy(std::span<const Relocation> relocations, StreamKey stream) CACHALOT_REQUIRES(books_.mutex);

  PoolBooks& books_;
  std::vector<PoolSlot*> tensors_;  // to be moved; those of a stream together
  std::vector<PoolSlot*> aside_;    // the free slots of the same slabs, where no tensor is to be moved to
  CompactReport report_;
};

CACHALOT_END
