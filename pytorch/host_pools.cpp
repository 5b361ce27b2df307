#include "pytorch/host_pools.h"

namespace cachalot {

void HostPools::add(void* buffer, PoolId pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  buffers_[buffer] = {.pool = pool};
  count_.store(buffers_.size());
}

void HostPools::use(void* buffer) {
  if (count_.load() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found != buffers_.end()) found->second.is_used = true;
}

bool HostPools::keep(void* buffer) {
  if (count_.load() == 0) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found == buffers_.end()) return false;
  if (found->second.is_used) return found->second.is_freed = true;
  buffers_.erase(found);
  count_.store(buffers_.size());
  return false;
}

std::vector<void*> HostPools::release(PoolId pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<void*> kept;
  std::erase_if(buffers_, [&](const auto& entry) {
    const auto& [buffer, state] = entry;
    if (state.pool == pool && state.is_freed) kept.push_back(buffer);
    return state.pool == pool;
  });
  count_.store(buffers_.size());
  return kept;
}

}  // namespace cachalot
