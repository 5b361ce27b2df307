#include "blocks/block_heap.h"
#include "base/format.h"

CACHALOT_BEGIN

static_assert(PageMap::kAddressBits <= FreeBins::kAddressBits);

Block& BlockHeap::add_segment(Address address, std::size_t bytes, Arena& arena) {
  CACHALOT_REQUIRE((address + bytes) >> PageMap::kAddressBits == 0,
                   "the device gave address {:#x}, beyond the {} bits supported", address, PageMap::kAddressBits);
  CACHALOT_REQUIRE(address % kBlockGranularity == 0 && bytes % kBlockGranularity == 0 && bytes != 0,
                   "the device gave a segment of {} bytes at {:#x}: both must be multiples of {}", bytes, address,
                   kBlockGranularity);
  CACHALOT_REQUIRE(bytes < FreeBins::kMaxBytes, "the device gave a segment of {} bytes, beyond the {} supported", bytes,
                   FreeBins::kMaxBytes);
  Block& block = slab_.make();
  try {
    page_map_.enter(address, bytes);
  } catch (...) {
    slab_.retire(block);
    throw;
  }
  try {
    segments_.emplace(address, &block);
    numbers_.emplace(address, last_number_ + 1);
  } catch (...) {
    segments_.erase(address);
    page_map_.leave(address, bytes);
    slab_.retire(block);
    throw;
  }
  ++last_number_;
  block = {address, bytes, 0, 0, &edge_, &edge_, &arena, {}};
  insert(block);
  return block;
}

std::uint64_t BlockHeap::segment_number(const Block& head) const {
  const auto number = numbers_.find(head.address);
  return number == numbers_.end() ? 0 : number->second;
}

void BlockHeap::remove_segment(Block& block) {
  CACHALOT_ASSERT(block.is_free() && !block.is_split());
  block.arena->bins.remove(block);
  numbers_.erase(block.address);
  segments_.erase(block.address);
  page_map_.leave(block.address, block.size());
  if (BlockDetail* detail = slab_.find_detail(block)) detail->segment_context.reset();
  slab_.retire(block);
}

// The upper part is a free block of its own for a moment, so that allocate does the rest.
Block& BlockHeap::allocate_inside(Block& block, Address address, std::size_t bytes, std::size_t requested, bool split,
                                  InactiveSplit& change) {
  CACHALOT_ASSERT(block.is_free() && block.address <= address && address + bytes <= block.end());
  if (address == block.address) {
    change = allocate(block, bytes, requested, split);
    return block;
  }
  Block& part = slab_.make();
  const std::size_t whole = block.size();
  const std::int64_t was_split = as_number(block.is_split());
  FreeBins& bins = block.arena->bins;
  bins.remove(block);
  part = {address, block.end() - address, block.requested, 0, &block, block.next, block.arena, {}};
  part.next->prev = &part;
  block.next = &part;
  block.size_and_flags = address - block.address;
  block.map_place = 0;  // as in cut
  insert(part);
  part.bin.epoch = block.bin.epoch;
  bins.insert(block);
  try {
    change = allocate(part, bytes, requested, split);
  } catch (...) {
    bins.remove(block);
    bins.remove(part);
    absorb(block, part);
    bins.insert(block);
    throw;
  }
  if (!part.arena->in_ranges) {
    change.blocks += 2 - was_split;
    change.bytes += as_signed(whole) * (1 - was_split);
  }
  return part;
}

// --- ranges of addresses ---------------------------------------------------------------------------------------------

Block& BlockHeap::add_range(Address address, std::size_t bytes) {
  CACHALOT_REQUIRE((address + bytes) >> PageMap::kAddressBits == 0,
                   "the device reserved addresses up to {:#x}, beyond the {} bits supported", address + bytes,
                   PageMap::kAddressBits);
  Block& gap = slab_.make();
  try {
    page_map_.enter(address, bytes);
  } catch (...) {
    slab_.retire(gap);
    throw;
  }
  gap = {address, bytes | Block::kEdge | Block::kGap, 0, 0, &edge_, &edge_, nullptr, {}};
  return gap;
}

void BlockHeap::remove_range(Block& gap) {
  CACHALOT_ASSERT(gap.is_gap() && gap.prev == &edge_ && gap.next == &edge_);
  page_map_.leave(gap.address, gap.size());
  slab_.retire(gap);
}

Block& BlockHeap::cut(Block& block, Address address) {
  CACHALOT_ASSERT(!block.is_free() && block.address < address && address < block.end());
  const std::uint64_t flags = block.size_and_flags & Block::kFlagBits;
  Block& high = slab_.make();
  high = {address, (block.end() - address) | flags, block.requested, 0, &block, block.next, block.arena, {}};
  high.bin.epoch = block.bin.epoch;
  high.next->prev = &high;
  block.next = &high;
  block.size_and_flags = (address - block.address) | flags;
  block.map_place = 0;  // its slot in the page map may now be shared: PageMap::kNeverShared
  return high;
}

void BlockHeap::open_gap(Block& gap, Arena& arena) {
  CACHALOT_ASSERT(gap.is_gap());
  if (!gap.next->is_edge()) segments_.erase(gap.next->address);
  if (gap.prev->is_edge()) segments_.emplace(gap.address, &gap);
  gap.size_and_flags = gap.size() | Block::kClaimed;
  gap.requested = 0;
  gap.arena = &arena;
  gap.bin.epoch = arena.epoch;
}

Block& BlockHeap::close_gap(Block& block) {
  CACHALOT_ASSERT(block.has(Block::kClaimed));
  if (block.prev->is_edge()) segments_.erase(block.address);
  if (!block.next->is_edge()) segments_.emplace(block.next->address, block.next);
  page_map_.forget(block.address, block.size());
  block.map_place = 0;
  block.size_and_flags = block.size() | Block::kEdge | Block::kGap;
  block.arena = nullptr;
  if (BlockDetail* detail = slab_.find_detail(block)) detail->segment_context.reset();
  if (block.next->is_gap()) join_gaps(block, *block.next);
  if (!block.prev->is_gap()) return block;
  Block& low = *block.prev;
  join_gaps(low, block);
  return low;
}

void BlockHeap::join_gaps(Block& low, Block& high) {
  low.size_and_flags += high.size();
  low.next = high.next;
  low.next->prev = &low;
  slab_.retire(high);
}

// --------------------------------------------------------------------------------------------------------------------

Block* BlockHeap::segment_at(Address address) const {
  auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  Block* head = std::prev(after)->second;
  const Block* last = head;
  while (!last->next->is_edge()) last = last->next;
  return address < last->end() ? head : nullptr;
}

Block* BlockHeap::block_at(Address address) const {
  Block* block = segment_at(address);
  while (block != nullptr && block->end() <= address) block = block->next;
  return block;
}

std::uint64_t BlockHeap::freed_at(const Block& block) const {
  const BlockDetail* detail = slab_.find_detail(block);
  return detail == nullptr ? 0 : detail->freed_at;
}

namespace {

std::string validate_block(const Block& block, const Block* prev, const PageMap& page_map) {
  if (block.prev != prev) return formatted("block {:#x} does not know its neighbour", block.address);
  if (block.has(Block::kRetired)) return formatted("segment holds retired block {:#x}", block.address);
  if (block.size() == 0) return formatted("block {:#x} is empty", block.address);
  if (!prev->is_edge()) {
    if (prev->end() != block.address) return formatted("gap or overlap at block {:#x}", block.address);
    if (prev->is_free() && block.is_free() && prev->arena == block.arena)
      return formatted("free neighbours at block {:#x}", block.address);
    if (prev->arena != block.arena && !block.arena->in_ranges)
      return formatted("segment of two arenas at block {:#x}", block.address);
  }
  if ((block.has(Block::kAllocated) || block.has(Block::kCached)) && page_map.find(block.address) != &block) {
    return formatted("the page map does not find block {:#x}", block.address);
  }
  return "";
}

}  // namespace

std::string BlockHeap::validate() const {
  Address end = 0;
  for (const auto& [address, head] : segments_) {
    if (address != head->address) return formatted("segment {:#x} begins at block {:#x}", address, head->address);
    if (address < end) return formatted("segment {:#x} overlaps the one before", address);
    const Block* prev = head->prev;
    if (!prev->is_edge()) return formatted("segment {:#x} begins inside another", address);
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      if (std::string broken = validate_block(*block, prev, page_map_); !broken.empty()) return broken;
      prev = block;
      end = block->end();
    }
  }
  return "";
}

std::size_t BlockHeap::metadata_bytes() const {
  constexpr std::size_t kMapNode = 48;  // of std::map in libstdc++, with a key and a pointer
  return slab_.metadata_bytes() + (segments_.size() + numbers_.size()) * kMapNode;
}

CACHALOT_END
