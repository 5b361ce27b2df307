#include "segments/segment_heap.h"

#include <fmt/format.h>

namespace cachalot {

static_assert(PageMap::kAddressBits <= FreeBins::kAddressBits);

Block& SegmentHeap::add_segment(Address address, std::size_t bytes, Arena& arena) {
  CACHALOT_REQUIRE(address >> PageMap::kAddressBits == 0, "the device gave address {:#x}, beyond the {} bits supported",
                   address, PageMap::kAddressBits);
  CACHALOT_REQUIRE(address % kBlockGranularity == 0 && bytes % kBlockGranularity == 0 && bytes != 0,
                   "the device gave a segment of {} bytes at {:#x}: both must be multiples of {}", bytes, address,
                   kBlockGranularity);
  CACHALOT_REQUIRE(bytes < FreeBins::kMaxBytes, "the device gave a segment of {} bytes, beyond the {} supported", bytes,
                   FreeBins::kMaxBytes);
  Block& block = slab_.make();
  try {
    segments_.emplace(address, &block);
  } catch (...) {
    slab_.retire(block);
    throw;
  }
  block = {address, bytes, 0, 0, &edge_, &edge_, &arena, {}};
  insert(block);
  return block;
}

void SegmentHeap::remove_segment(Block& block) {
  CACHALOT_ASSERT(block.is_free() && !block.is_split());
  block.arena->bins.remove(block);
  segments_.erase(block.address);
  if (BlockDetail* detail = slab_.find_detail(block)) detail->segment_context.reset();
  slab_.retire(block);
}

Block* SegmentHeap::segment_at(Address address) const {
  auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  Block* head = std::prev(after)->second;
  const Block* last = head;
  while (!last->next->is_edge()) last = last->next;
  return address < last->end() ? head : nullptr;
}

std::uint64_t SegmentHeap::freed_at(const Block& block) const {
  const BlockDetail* detail = slab_.find_detail(block);
  return detail == nullptr ? 0 : detail->freed_at;
}

namespace {

std::string validate_block(const Block& block, const Block* prev, const PageMap& page_map) {
  if (block.prev != prev) return fmt::format("block {:#x} does not know its neighbour", block.address);
  if (block.has(Block::kRetired)) return fmt::format("segment holds retired block {:#x}", block.address);
  if (block.size() == 0) return fmt::format("block {:#x} is empty", block.address);
  if (!prev->is_edge()) {
    if (prev->end() != block.address) return fmt::format("gap or overlap at block {:#x}", block.address);
    if (prev->is_free() && block.is_free()) return fmt::format("free neighbours at block {:#x}", block.address);
    if (prev->arena != block.arena) return fmt::format("segment of two arenas at block {:#x}", block.address);
  }
  if (block.has(Block::kAllocated) && page_map.find(block.address) != &block) {
    return fmt::format("the page map does not find block {:#x}", block.address);
  }
  return "";
}

}  // namespace

std::string SegmentHeap::validate() const {
  Address end = 0;
  for (const auto& [address, head] : segments_) {
    if (address != head->address) return fmt::format("segment {:#x} begins at block {:#x}", address, head->address);
    if (address < end) return fmt::format("segment {:#x} overlaps the one before", address);
    const Block* prev = &edge_;
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      if (std::string broken = validate_block(*block, prev, page_map_); !broken.empty()) return broken;
      prev = block;
      end = block->end();
    }
  }
  return "";
}

std::size_t SegmentHeap::metadata_bytes() const {
  constexpr std::size_t kMapNode = 48;  // of std::map in libstdc++, with a key and a pointer
  return slab_.metadata_bytes() + segments_.size() * kMapNode;
}

}  // namespace cachalot
