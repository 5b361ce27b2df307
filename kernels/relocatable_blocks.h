// The memory of a RelocatableHeap's handles, found by its address.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/fork_aware.h"
#include "cachalot/allocation.h"
#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN

inline Address address_of(const Allocation& memory) { return reinterpret_cast<Address>(memory.get()); }

struct RelocatableBlock {
  Allocation memory;
  std::size_t bytes = 0;  // as asked for
  Stream stream = nullptr;
};

// Thread safety: add and remove from any thread; the others while nobody adds or removes.
class RelocatableBlocks final : private ForkAware {
 public:
  RelocatableBlocks(CachingAllocator& allocator, int device) : allocator_(allocator), device_(device) {}
  CachingAllocator& allocator() const { return allocator_; }
  int device() const { return device_; }

  void add(RelocatableBlock& block) {
    const std::lock_guard lock(mutex_);
    by_address_.emplace(address_of(block.memory), &block);
  }
  void remove(const RelocatableBlock& block) {
    if (is_inherited()) return;  // its mutex may be held for good; and the memory is the parent's
    const std::lock_guard lock(mutex_);
    by_address_.erase(address_of(block.memory));
  }
  // nullptr: none of ours.
  RelocatableBlock* find(Address address) const {
    const auto found = by_address_.find(address);
    return found == by_address_.end() ? nullptr : found->second;
  }
  // The block lies in `memory` from now on, which becomes its old memory.
  void relocate(RelocatableBlock& block, Allocation& memory) noexcept {
    auto node = by_address_.extract(address_of(block.memory));
    std::swap(block.memory, memory);
    node.key() = address_of(block.memory);
    by_address_.insert(std::move(node));
  }

 private:
  CachingAllocator& allocator_;
  const int device_;
  std::mutex mutex_;
  std::map<Address, RelocatableBlock*> by_address_;
};

CACHALOT_END
