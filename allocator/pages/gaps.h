// The gaps of a range, by address, so that whoever looks for one walks neither over blocks nor over the map of runs.
// Gaps change only when pages come or go, not with a malloc or a free. Not thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "blocks/block.h"

CACHALOT_BEGIN

class Gaps {
 public:
  std::size_t count() const { return gaps_.size(); }
  const BlockAt& operator[](std::size_t index) const { return gaps_[index]; }
  // The index of the first gap that begins at the address or behind it; count(): none does.
  std::size_t first_from(Address address) const;
  // The last gap that begins at the address or before it; nullptr: none does.
  Block* last_until(Address address) const;

  // The gap that holds the address, or else the first behind it; nullptr: there is none.
  Block* at_or_behind(Address address) const;

  // A gap is there, in place of those that were within its addresses.
  void add(Block& gap);
  void remove(Address address);
  // The gap at an address begins farther behind now, and is another block.
  void move(Address address, Block& gap);

  std::size_t metadata_bytes() const { return capacity_bytes(gaps_); }

 private:
  std::vector<BlockAt>::iterator at(Address address);

  std::vector<BlockAt> gaps_;
};

CACHALOT_END
