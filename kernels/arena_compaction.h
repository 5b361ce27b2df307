// Moves relocatable blocks of one arena together, through the allocator's public calls. An arena is one stream's small
// or large requests; over the page heap, where streams share what is free, those of all streams.
//
// Units are what can become free as a whole: segments, over the page heap pages. The emptiest are to be left, as many
// as the free bytes of the others can take in. Where a new block lies is the allocator's choice (best fit): one that
// lies in a unit to be left is set aside, so that it is not offered again, and another is asked for, as long as a free
// block of the arena can serve it; so the arena does not grow. Nothing is copied before all have their places.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "cachalot/compact_report.h"
#include "cachalot/kernels.h"
#include "cachalot/snapshot.h"
#include "kernels/relocatable_blocks.h"

CACHALOT_BEGIN

// The free blocks of an arena, as far as it is known who takes them.
class Holes {
 public:
  void add(Address address, std::size_t bytes);
  bool has_room_for(std::size_t bytes) const { return !sizes_.empty() && *sizes_.rbegin() >= bytes; }
  // Somebody has taken a part; false: that was none.
  bool take(Address address, std::size_t bytes);
  // It is free again, and one with its neighbours.
  void give_back(Address address, std::size_t bytes);

 private:
  using ByAddress = std::map<Address, std::size_t>;
  void remove(ByAddress::const_iterator hole);

  ByAddress by_address_;
  std::multiset<std::size_t> sizes_;
};

class ArenaCompaction {
 public:
  ArenaCompaction(RelocatableBlocks& blocks, const std::vector<const SegmentSnapshot*>& segments);
  void run(Kernels& mover, CompactReport& report);

 private:
  struct Unit {
    std::size_t bytes = 0;
    std::size_t used = 0;     // of them, by any block that is not free
    std::size_t to_move = 0;  // bytes of all blocks that lie in it, or reach into it
    bool is_ours = true;      // they are all relocatable
    bool leaves = false;
    std::vector<RelocatableBlock*> blocks;
  };
  struct Move {
    RelocatableBlock* block;
    Allocation memory;  // its new, then its old
  };
  using Units = std::map<Address, Unit>;  // by where they begin

  void add_units(const SegmentSnapshot& segment);
  RelocatableBlock* movable(const BlockSnapshot& block);
  void add_block(const BlockSnapshot& block);
  template <typename Visit>
  void for_each_unit(Address address, std::size_t bytes, Visit&& visit);

  std::vector<Unit*> choose_leaving();
  void find_places(const Unit& unit);
  bool find_place(RelocatableBlock& block);
  Allocation take_free_block(const RelocatableBlock& like);
  void undo_last_move();
  bool is_to_be_left(Address address, std::size_t bytes);
  void commit(Kernels& mover, std::span<Move> moves, CompactReport& report);

  RelocatableBlocks& blocks_;
  std::map<Stream, bool> captures_;
  Units units_;
  Holes holes_;
  std::set<const RelocatableBlock*> placed_;
  std::vector<Move> moves_;
  std::vector<Allocation> aside_;
};

CACHALOT_END
