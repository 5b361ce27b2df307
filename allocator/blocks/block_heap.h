// The BlockHeap cuts segments into blocks. It knows where every block is, splits and merges them, and knows nothing of
// devices, streams in flight, limits or statistics: HeapState and Growth decide, the BlockHeap executes.
// Not thread-safe: guarded by the mutex of its DeviceAllocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "blocks/block.h"
#include "blocks/block_pool.h"
#include "blocks/page_map.h"

CACHALOT_BEGIN

// An operation's change of PyTorch's inactive_split figures: free blocks that are part of a split segment.
struct InactiveSplit {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;
};

class BlockHeap {
 public:
  BlockHeap(int device, PageMap& page_map) : page_map_(page_map), slab_(device, page_map.memory()) {}

  // Adds a segment that the device gave: one free block, in its arena's bins. Throws InvalidArgument for an address of
  // more than PageMap::kAddressBits bits, for FreeBins::kMaxBytes and more, and for a size that is not a multiple of
  // kBlockGranularity, and std::bad_alloc, having changed nothing.
  Block& add_segment(Address address, std::size_t bytes, Arena& arena);
  // Forgets the segment of a free block that is a whole segment.
  void remove_segment(Block& block);

  // Marks a free block allocated. With `split`, only its first `bytes` bytes: the rest becomes a free block. Throws
  // std::bad_alloc, having changed nothing, when there is no memory for another block. (Host memory that runs out for
  // the tables beside the blocks ends the program: nothing half done could be taken back.)
  CACHALOT_FAST_PATH InactiveSplit allocate(Block& block, std::size_t bytes, std::size_t requested, bool split) {
    Block* rest = split ? &slab_.make() : nullptr;
    const std::uint32_t epoch = block.bin.epoch;
    const std::int64_t was_split = as_number(block.is_split());
    block.arena->bins.remove(block);
    InactiveSplit change;
    if (rest != nullptr) {
      *rest = {block.address + bytes, block.size() - bytes, block.requested, 0, &block, block.next, block.arena, {}};
      rest->next->prev = rest;
      block.next = rest;
      block.size_and_flags = bytes;
      insert(*rest);
      rest->bin.epoch = epoch;
      const std::int64_t whole = as_signed(bytes + rest->size());
      change = {1 - was_split, as_signed(rest->size()) - (was_split * whole)};
    } else {
      change = {-was_split, -was_split * as_signed(block.size())};
    }
    block.size_and_flags |= Block::kAllocated;
    block.requested = requested & Block::kRequestedBits;
    block.uses = {nullptr, 0};
    page_map_.set(block);
    if (block.arena->in_ranges) [[unlikely]]
      change = {};
    return change;
  }

  // Marks the bytes from `address` on of a free block allocated, as a block of their own, which it returns; with `split` only
  // `bytes` of them. The bytes before stay free. Throws std::bad_alloc as allocate, having changed nothing.
  Block& allocate_inside(Block& block, Address address, std::size_t bytes, std::size_t requested, bool split,
                         InactiveSplit& change);

  // Makes a block free and merges it with free neighbours of its arena; the merged block keeps the lowest one's place.
  CACHALOT_FAST_PATH InactiveSplit put_back(Block& freed) {
    InactiveSplit change;
    put_back(freed, change);
    return change;
  }
  // Puts the block back; returns the merged block.
  CACHALOT_FAST_PATH Block& put_back(Block& freed, InactiveSplit& change) {
    Block* block = &freed;
    block->size_and_flags = block->size();
    if (Block* prev = block->prev; prev->is_free() && prev->arena == block->arena) {
      change.blocks -= 1;
      change.bytes -= as_signed(prev->size());
      prev->arena->bins.remove(*prev);
      prev->requested = block->requested;  // PyTorch shows a free block with its last user's request
      absorb(*prev, *block);
      block = prev;
    }
    if (Block* next = block->next; next->is_free() && next->arena == block->arena) {
      change.blocks -= 1;
      change.bytes -= as_signed(next->size());
      next->arena->bins.remove(*next);
      absorb(*block, *next);
    }
    insert(*block);
    const std::int64_t is_split = as_number(block->is_split());
    change.blocks += is_split;
    change.bytes += is_split * as_signed(block->size());
    if (block->arena->in_ranges) [[unlikely]]
      change = {};
    return *block;
  }

  // Ranges of addresses that memory comes to and goes from, for the page heap. Blocks in ranges have no inactive_split
  // figures, as PyTorch keeps none of its expandable segments. Of a range, what has memory is blocks, and each stretch of
  // them between gaps is a segment; the rest is gaps.
  // `bytes` of addresses, all one gap, which it returns.
  Block& add_range(Address address, std::size_t bytes);
  // Forgets a range that is one gap again.
  void remove_range(Block& gap);
  // Cuts a gap, or a block that is in no bin, in two at `address` inside it; returns the upper part.
  Block& cut(Block& block, Address address);
  // A gap becomes a block of `arena` in no bin, marked kClaimed.
  void open_gap(Block& gap, Arena& arena);
  // A block in no bin becomes a gap, and one with gaps beside it; returns that.
  Block& close_gap(Block& block);
  // Takes a free block out of its bins, marked kClaimed; put_back undoes it, and keeps the epoch if it is to.
  void claim(Block& block) {
    block.arena->bins.remove(block);
    block.size_and_flags |= Block::kClaimed;
  }

  // A claimed block is free again and in its bins, but not merged with its neighbours.
  void unclaim(Block& block) {
    block.size_and_flags = block.size();
    insert(block);
  }

  // First blocks of all segments, by address.
  const Map<Address, Block*>& segments() const { return segments_; }
  // Returns the number of the segment of a first block, from 1 on in the order of add_segment; 0 for other segments.
  std::uint64_t segment_number(const Block& head) const;
  // Returns the segment that holds the address, or null.
  Block* segment_at(Address address) const;

  // Returns the block of a segment that holds the address, or null.
  Block* block_at(Address address) const;

  // From now on blocks remember when they became free, for garbage collection by age.
  void start_keeping_ages() { keeps_ages_ = true; }
  std::uint64_t freed_at(const Block& block) const;

  BlockSlab& slab() { return slab_; }
  const BlockSlab& slab() const { return slab_; }

  // The first broken invariant of block.h, or "".
  std::string validate() const;
  std::size_t metadata_bytes() const;

 private:
  CACHALOT_FAST_PATH void insert(Block& block) {
    block.arena->bins.insert(block);
    block.bin.epoch = block.arena->epoch;
    if (keeps_ages_) [[unlikely]]
      slab_.detail(block).freed_at = block.arena->pool.clock;
  }
  // Lets `low` take over the stretch of its next neighbour `high`, whose Block then no longer exists.
  CACHALOT_FAST_PATH void absorb(Block& low, Block& high) {
    CACHALOT_ASSERT(low.next == &high && low.end() == high.address && low.arena == high.arena);
    low.size_and_flags += high.size();
    low.next = high.next;
    low.next->prev = &low;
    slab_.retire(high);
  }

  void join_gaps(Block& low, Block& high);

  PageMap& page_map_;
  BlockSlab slab_;
  Map<Address, Block*> segments_;
  Map<Address, std::uint64_t> numbers_;
  std::uint64_t last_number_ = 0;
  // Stands beside the first and the last block of every segment, so that no neighbour is null. Its pointers mean
  // nothing.
  Block edge_ = {0, Block::kEdge, 0, 0, nullptr, nullptr, nullptr, {}};
  bool keeps_ages_ = false;
};

CACHALOT_END
