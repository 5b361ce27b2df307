#include "caches/depot.h"

#include <new>

#include "base/format.h"
#include "blocks/block_pool.h"

CACHALOT_BEGIN

std::string validate(std::span<Block* const> blocks, std::size_t size_class, StreamKey stream) {
  for (const Block* block : blocks) {
    if (!block->is_cached()) return formatted("block {:#x} is in a cache and not marked so", block->address);
    if (block->size() != SizeClass::bytes(size_class) || block->lease.size_class != size_class ||
        block->lease.first_place != SizeClass::first(size_class) || block->lease.most != SizeClass::most(size_class))
      return formatted("block {:#x} of {} bytes is cached as one of {}", block->address, block->size(),
                       SizeClass::bytes(size_class));
    if (block->arena->stream.key != stream)
      return formatted("block {:#x} is cached for another stream", block->address);
  }
  return "";
}

std::uint16_t* LentWords::allocate() {
  if (free_.empty()) {
    const std::size_t room = (lines_.size() + 1) * kWords;
    if (room > free_.capacity()) free_.reserve(std::max(room, 2 * free_.capacity()));
    Line& line = lines_.emplace_back(Line{this, {}});
    for (std::size_t i = kWords; i-- > 0;) free_.push_back(&line.words[i]);
  }
  std::uint16_t* const word = free_.back();
  free_.pop_back();
  return word;
}

void LentWords::free(std::uint16_t* word) {
  const auto line = reinterpret_cast<std::uintptr_t>(word) / kCacheLine * kCacheLine;
  reinterpret_cast<Line*>(line)->owner->free_.push_back(word);
}

bool Depot::put(std::size_t size_class, Block* const* batch) {
  const std::int64_t bytes = SizeClass::batch_bytes(size_class);
  const std::int64_t used = budget_.used_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (used <= budget_.limit_bytes.load(std::memory_order_relaxed) && push(size_class, batch)) return true;
  budget_.used_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

bool Depot::push(std::size_t size_class, Block* const* batch) {
  const std::uint32_t count = SizeClass::batch(size_class);
  const Lock lock(mutex_);
  Stack& stack = stacks_[size_class];
  if (stack.batches == kMostBatches) return false;
  if (stack.blocks == nullptr) stack.blocks.reset(new (std::nothrow) Block*[kMostBatches * count]);
  if (stack.blocks == nullptr) return false;
  std::copy_n(batch, count, &stack.blocks[stack.batches++ * count]);
  batches_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Depot::take(std::size_t size_class, Block** batch) {
  const std::uint32_t count = SizeClass::batch(size_class);
  {
    const Lock lock(mutex_);
    Stack& stack = stacks_[size_class];
    if (stack.batches == 0) return false;
    std::copy_n(&stack.blocks[--stack.batches * count], count, batch);
    batches_.fetch_sub(1, std::memory_order_relaxed);
  }
  budget_.used_bytes.fetch_sub(SizeClass::batch_bytes(size_class), std::memory_order_relaxed);
  return true;
}

std::size_t Depot::blocks() const {
  const Lock lock(mutex_);
  std::size_t blocks = 0;
  for (std::size_t i = 0; i < SizeClass::kCount; ++i) blocks += stacks_[i].batches * SizeClass::batch(i);
  return blocks;
}

std::int64_t Depot::bytes() const {
  const Lock lock(mutex_);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < SizeClass::kCount; ++i)
    bytes += as_signed(stacks_[i].batches) * SizeClass::batch_bytes(i);
  return bytes;
}

std::string Depot::validate(StreamKey stream) const {
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < SizeClass::kCount; ++i) {
    const std::span<Block* const> blocks(stacks_[i].blocks.get(), stacks_[i].batches * SizeClass::batch(i));
    if (std::string broken = cachalot::validate(blocks, i, stream); !broken.empty()) return broken;
  }
  return "";
}

std::size_t Depot::metadata_bytes() const {
  const Lock lock(mutex_);
  std::size_t bytes = sizeof(*this);
  for (const LentWords& words : words_) bytes += sizeof(words) + words.metadata_bytes();
  for (std::size_t i = 0; i < SizeClass::kCount; ++i) {
    if (stacks_[i].blocks != nullptr) bytes += kMostBatches * SizeClass::batch(i) * sizeof(Block*);
  }
  return bytes;
}

CACHALOT_END
