// A seam is where memory of one arena meets memory of another inside a page. Such a page may be idle although no free
// block covers it: two or more do, which do not merge because they belong to different arenas.
//
// Arenas of memory change only when pages move or are handed over, not with a malloc or a free. No block lies across a
// seam, and the block behind it neither ends nor becomes part of another as long as the seam is there. So the PageHeap
// notes seams where it makes and removes them, and a search finds the pages without looking at any other small block.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bits.h"
#include "base/bytes.h"
#include "blocks/block.h"

CACHALOT_BEGIN

class Seams {
 public:
  explicit Seams(PowerOfTwo grid) : grid_(grid) {}

  const std::vector<BlockAt>& all() const { return seams_; }  // by address: the blocks that begin there
  // Forgets the seams at begin, at end and between them.
  void forget(Address begin, Address end);
  // Forgets the seams at both ends of a block and in it, and notes those that are at its ends now.
  void look_again(Block& block) noexcept;  // host memory that runs out ends the program

  bool is_seam(const Block& block) const {
    return !block.is_edge() && !block.prev->is_edge() && block.prev->arena != block.arena &&
           grid_.down(block.address) != block.address;
  }
  std::size_t metadata_bytes() const { return capacity_bytes(seams_); }

 private:
  std::vector<BlockAt>::iterator first_from(Address address) {
    return std::ranges::lower_bound(seams_, address, {}, &BlockAt::address);
  }

  PowerOfTwo grid_;
  std::vector<BlockAt> seams_;
};

CACHALOT_END
