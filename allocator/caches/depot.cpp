#include "caches/depot.h"

#include <fmt/format.h>

#include "blocks/block_pool.h"

namespace cachalot {

std::string validate(const BlockList& list, std::size_t size_class, Stream stream) {
  const Block* block = list.head;
  for (std::uint32_t i = 0; i < list.count; ++i, block = block->lease.next) {
    if (block == nullptr) return fmt::format("a cached list of {} blocks has {}", list.count, i);
    if (!block->is_cached()) return fmt::format("block {:#x} is in a cache and not marked so", block->address);
    if (block->size() != SizeClass::bytes(size_class))
      return fmt::format("block {:#x} of {} bytes is cached as one of {}", block->address, block->size(),
                         SizeClass::bytes(size_class));
    if (block->arena->stream != stream) return fmt::format("block {:#x} is cached for another stream", block->address);
  }
  return block == nullptr ? "" : fmt::format("a cached list has more than its {} blocks", list.count);
}

bool Depot::put(std::size_t size_class, const BlockList& batch) {
  CACHALOT_ASSERT(batch.count == SizeClass::batch(size_class));
  const std::int64_t bytes = SizeClass::batch_bytes(size_class);
  const Lock lock(mutex_);
  Stack& stack = stacks_[size_class];
  if (stack.count == kMostBatches) return false;
  const std::int64_t used = budget_.used_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (used > budget_.limit_bytes.load(std::memory_order_relaxed)) {
    budget_.used_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  stack.batches[stack.count++] = batch.head;
  return true;
}

BlockList Depot::take(std::size_t size_class) {
  const Lock lock(mutex_);
  Stack& stack = stacks_[size_class];
  if (stack.count == 0) return {};
  budget_.used_bytes.fetch_sub(SizeClass::batch_bytes(size_class), std::memory_order_relaxed);
  return {stack.batches[--stack.count], SizeClass::batch(size_class)};
}

std::size_t Depot::blocks() const {
  const Lock lock(mutex_);
  std::size_t blocks = 0;
  for (std::size_t i = 0; i < SizeClass::kCount; ++i) blocks += stacks_[i].count * SizeClass::batch(i);
  return blocks;
}

std::int64_t Depot::bytes() const {
  const Lock lock(mutex_);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < SizeClass::kCount; ++i) bytes += stacks_[i].count * SizeClass::batch_bytes(i);
  return bytes;
}

std::string Depot::validate(Stream stream) const {
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < SizeClass::kCount; ++i) {
    for (std::uint32_t j = 0; j < stacks_[i].count; ++j) {
      const BlockList batch = {stacks_[i].batches[j], SizeClass::batch(i)};
      if (std::string broken = cachalot::validate(batch, i, stream); !broken.empty()) return broken;
    }
  }
  return "";
}

}  // namespace cachalot
