#include "blocks/block.h"

#include <new>

CACHALOT_BEGIN

BlockSlab::~BlockSlab() {
  for (Chunk* chunk : chunks_) chunk->~Chunk();
}

void BlockSlab::add_chunk() {
  chunks_.reserve(chunks_.size() + 1);
  void* memory = memory_.allocate(kChunkBytes, kChunkBytes);
  auto* blocks = static_cast<Block*>(memory);
  auto* chunk = new (memory) Chunk{device_, nullptr};
  chunks_.push_back(chunk);
  for (std::size_t slot = kSlots - 1; slot >= 1; --slot) retire(blocks[slot]);
}

BlockDetail& BlockSlab::detail(const Block& block) noexcept {
  Chunk& chunk = chunk_of(block);
  if (!chunk.details) chunk.details = std::make_unique<BlockDetail[]>(kSlots);
  return chunk.details[slot_of(block)];
}

BlockDetail* BlockSlab::find_detail(const Block& block) const {
  const Chunk& chunk = chunk_of(block);
  return chunk.details ? &chunk.details[slot_of(block)] : nullptr;
}

std::size_t BlockSlab::metadata_bytes() const {
  std::size_t bytes = chunks_.capacity() * sizeof(Chunk*);  // the chunks are counted by their MetadataMemory
  for (const Chunk* chunk : chunks_) bytes += chunk->details ? kSlots * sizeof(BlockDetail) : 0;
  return bytes;
}

CACHALOT_END
