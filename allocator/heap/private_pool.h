// A PrivatePool is a pool beside the default one: of a graph, of the program, or of a tag.
//
// It lives until it has neither users nor memory, and is awake (Recovery::release_unused_pools).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/locks.h"
#include "blocks/block_pool.h"
#include "cachalot/private_pool.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

class Growth;

// SavedBytes are the content of a sleeping handle in pinned host memory: its stretches, one after the other.
struct SavedBytes {
  void* host = nullptr;
  std::vector<PageHeap::Stretch> stretches;
};

// All members are guarded by the device's mutex.
struct PrivatePool {
  PrivatePool(PoolId pool_id, Growth& growth)
      : id(pool_id), small(PoolKind::small, pool_id, this, &growth), large(PoolKind::large, pool_id, this, &growth) {}

  PoolId id;
  int use_count = 1;
  std::size_t holds = 0;  // segments or handles that it has from the device, and requests for some
  bool may_split = true;
  std::shared_ptr<SegmentProvider> provider;  // null: the device
  BlockPool small;
  BlockPool large;
  std::string tag;                       // its name, if it is a tag's
  bool is_asleep = false;                // its handles are, or some: nothing is allocated from it
  std::map<HandleId, SavedBytes> saved;  // of handles that are asleep, or were when the device refused to go on
};

// Returns "tag 'weights'" or "pool (3, 0)", for messages.
std::string name_of(const PrivatePool& pool);
// Throws InvalidArgument if the pool is asleep; null is awake. `purpose` completes "nothing can be …" in the message.
void require_awake(const PrivatePool* pool, int device, const char* purpose = "allocated");

inline bool may_split(const BlockPool& pool) { return pool.owner() == nullptr || pool.owner()->may_split; }
inline bool is_asleep(const BlockPool& pool) { return pool.owner() != nullptr && pool.owner()->is_asleep; }

// A PoolHold keeps a private pool that is being asked for memory. The pool may have no segment yet, and its last user
// may release it while the lock is released.
class PoolHold {
 public:
  explicit PoolHold(PrivatePool* pool) : pool_(pool) {
    if (pool_ != nullptr) ++pool_->holds;
  }
  ~PoolHold() {
    if (pool_ != nullptr) --pool_->holds;
  }
  PoolHold(const PoolHold&) = delete;
  PoolHold& operator=(const PoolHold&) = delete;

 private:
  PrivatePool* pool_;
};

CACHALOT_END
