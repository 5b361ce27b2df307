#include "blocks/block_slab.h"

#include <cstdlib>
#include <new>

#include "blocks/page_map.h"

namespace cachalot {

BlockSlab::BlockSlab(int device, PageMap& page_map) : device_(device), page_map_(page_map) {}

BlockSlab::~BlockSlab() {
  for (Chunk* chunk : chunks_) {
    page_map_.forget_chunk(chunk->first_index);
    chunk->~Chunk();
    std::free(chunk);
  }
}

void BlockSlab::add_chunk() {
  chunks_.reserve(chunks_.size() + 1);
  void* memory = std::aligned_alloc(kChunkBytes, kChunkBytes);
  if (memory == nullptr) throw std::bad_alloc();
  auto* blocks = static_cast<Block*>(memory);
  auto* chunk = new (memory) Chunk{device_, 0, nullptr};
  try {
    chunk->first_index = page_map_.add_chunk(blocks);
  } catch (...) {
    std::free(memory);
    throw;
  }
  chunks_.push_back(chunk);
  for (std::size_t slot = kSlots - 1; slot >= 1; --slot) retire(blocks[slot]);
}

BlockDetail& BlockSlab::detail(const Block& block) {
  Chunk& chunk = chunk_of(block);
  if (!chunk.details) chunk.details = std::make_unique<BlockDetail[]>(kSlots);
  return chunk.details[slot_of(block)];
}

BlockDetail* BlockSlab::find_detail(const Block& block) const {
  const Chunk& chunk = chunk_of(block);
  return chunk.details ? &chunk.details[slot_of(block)] : nullptr;
}

std::size_t BlockSlab::metadata_bytes() const {
  std::size_t bytes = chunks_.capacity() * sizeof(Chunk*);
  for (const Chunk* chunk : chunks_) bytes += kChunkBytes + (chunk->details ? kSlots * sizeof(BlockDetail) : 0);
  return bytes;
}

}  // namespace cachalot
