// Where Blocks live. Memory comes in chunks of 64 KiB, aligned to their size, from the page map and lives as long as that:
// so the steady state allocates nothing, and a Block pointer found through the page map may always be looked at.
// One slab per device; a chunk knows its device, so that a block's owner is known without a lock.
// Not thread-safe but for owner_of and index_of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "blocks/block.h"

namespace cachalot {

class PageMap;

class BlockSlab {
 public:
  // Chunks are announced to `page_map`, which must outlive the slab.
  BlockSlab(int device, PageMap& page_map);
  ~BlockSlab();
  BlockSlab(const BlockSlab&) = delete;
  BlockSlab& operator=(const BlockSlab&) = delete;

  // Fields are not set, but for the links in the free list.
  Block& make() {
    if (free_ == nullptr) [[unlikely]]
      add_chunk();
    Block& block = *free_;
    free_ = block.next;
    return block;
  }
  void retire(Block& block) {
    block.address = 0;
    block.size_and_flags = Block::kRetired;
    block.next = free_;
    free_ = &block;
  }

  // Made on first use; nullptr from find_detail when none was made.
  BlockDetail& detail(const Block& block);
  BlockDetail* find_detail(const Block& block) const;

  std::size_t metadata_bytes() const;

  static constexpr std::size_t kChunkBytes = 64 * 1024;
  static constexpr std::size_t kSlots = kChunkBytes / sizeof(Block);  // slot 0 holds the chunk's header

  static int owner_of(const Block& block) { return chunk_of(block).device; }
  static std::uint32_t index_of(const Block& block) {
    const Chunk& chunk = chunk_of(block);
    return chunk.first_index + static_cast<std::uint32_t>(&block - reinterpret_cast<const Block*>(&chunk));
  }

 private:
  struct Chunk {
    int device;
    std::uint32_t first_index;
    std::unique_ptr<BlockDetail[]> details;
  };
  static_assert(sizeof(Chunk) <= sizeof(Block));
  static Chunk& chunk_of(const Block& block) {
    return *reinterpret_cast<Chunk*>(reinterpret_cast<std::uintptr_t>(&block) & ~(kChunkBytes - 1));
  }
  static std::size_t slot_of(const Block& block) {
    return (reinterpret_cast<std::uintptr_t>(&block) & (kChunkBytes - 1)) / sizeof(Block);
  }
  void add_chunk();

  int device_;
  PageMap& page_map_;
  Block* free_ = nullptr;
  std::vector<Chunk*> chunks_;
};

}  // namespace cachalot
