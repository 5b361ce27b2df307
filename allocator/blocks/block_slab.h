// Where Blocks live. Memory comes in chunks of 64 KiB, aligned to their size, and is never given back before the end: so
// the steady state allocates nothing, and a Block pointer found through the page map may always be looked at.
// One slab per device; a chunk knows its device, so that a block's owner is known without a lock.
// Not thread-safe but for owner_of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/metadata_memory.h"
#include "blocks/block.h"

CACHALOT_BEGIN

class BlockSlab {
 public:
  // Chunks come from `memory`, which must outlive the slab and whoever looks at its blocks.
  BlockSlab(int device, MetadataMemory& memory) : device_(device), memory_(memory) {}
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

  // Made on first use; nullptr from find_detail when none was made. Host memory that runs out here ends the program:
  // details are asked for when an operation is half done.
  BlockDetail& detail(const Block& block) noexcept;
  BlockDetail* find_detail(const Block& block) const;

  std::size_t metadata_bytes() const;

  static constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
  static constexpr std::size_t kSlots = kChunkBytes / sizeof(Block);  // slot 0 holds the chunk's header

  static int owner_of(const Block& block) { return chunk_of(block).device; }

 private:
  struct Chunk {
    int device;
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
  MetadataMemory& memory_;
  Block* free_ = nullptr;
  std::vector<Chunk*> chunks_;
};

CACHALOT_END
