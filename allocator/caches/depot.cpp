#include "caches/depot.h"

namespace cachalot {

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

}  // namespace cachalot
