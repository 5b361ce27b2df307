// Private pools of DeviceAllocator: whose they are, which requests go to them, and how to return to an earlier state.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "device/addresses.h"
#include "device_allocator.h"

namespace cachalot {

// --- users ----------------------------------------------------------------------------------------------------------

PrivatePool* DeviceAllocator::find_pool(PoolId id) const {
  const auto found = pools_.find(id);
  return found == pools_.end() ? nullptr : found->second.get();
}

PrivatePool& DeviceAllocator::existing_pool(PoolId id, const char* rule) const {
  PrivatePool* pool = find_pool(id);
  CACHALOT_REQUIRE(pool != nullptr, "{} ({}, {}) on device {}", rule, id.first, id.second, index_);
  return *pool;
}

PrivatePool& DeviceAllocator::retain_pool(PoolId id) {
  CACHALOT_REQUIRE(!id.is_default(), "pool id (0, 0) is the default pool's and cannot name a private pool");
  if (PrivatePool* pool = find_pool(id)) {
    ++pool->use_count;
    return *pool;
  }
  return *pools_.emplace(id, std::make_unique<PrivatePool>(id)).first->second;
}

void DeviceAllocator::create_or_retain_pool(PoolId id, std::shared_ptr<SegmentProvider> provider) {
  const Lock lock(mutex_);
  const bool is_new = find_pool(id) == nullptr;
  CACHALOT_REQUIRE(is_new || !provider || find_pool(id)->provider == provider,
                   "pool ({}, {}) already exists: its segment provider cannot change", id.first, id.second);
  PrivatePool& pool = retain_pool(id);
  if (is_new) pool.provider = std::move(provider);
}

void DeviceAllocator::release_pool(PoolId id) {
  const Lock lock(mutex_);
  PrivatePool& pool = existing_pool(id, "releasePool: could not find pool of id");
  CACHALOT_REQUIRE(pool.use_count > 0, "releasePool: pool ({}, {}) has no users", id.first, id.second);
  --pool.use_count;
}

// A redirection that was not ended keeps its pool, whatever its users said.
bool DeviceAllocator::in_use(const PrivatePool& pool) const {
  return pool.use_count > 0 || std::any_of(redirects_.begin(), redirects_.end(),
                                           [&](const Redirect& redirect) { return redirect.pool == &pool; });
}

int DeviceAllocator::pool_use_count(PoolId id) const {
  const Lock lock(mutex_);
  const PrivatePool* pool = find_pool(id);
  return pool == nullptr ? 0 : pool->use_count;
}

void DeviceAllocator::set_use_on_oom(PoolId id, bool use_on_oom) {
  const Lock lock(mutex_);
  std::erase(use_on_oom_, id);
  if (use_on_oom) use_on_oom_.push_back(id);
}

void DeviceAllocator::set_no_split(PoolId id) {
  const Lock lock(mutex_);
  existing_pool(id, "setNoSplit: could not find pool of id").may_split = false;
}

// --- redirection ----------------------------------------------------------------------------------------------------

void DeviceAllocator::begin_allocate_to_pool(PoolId id, StreamFilter filter, RedirectFor reason) {
  CACHALOT_REQUIRE(filter, "beginAllocateToPool: the filter must be callable");
  const Lock lock(mutex_);
  std::optional<SlowSection> slow;  // what a slow path found of captures when it began holds to its end
  if (reason == RedirectFor::capture) slow.emplace(*this);
  for (const Redirect& redirect : redirects_) {
    CACHALOT_REQUIRE(redirect.pool->id != id, "beginAllocateToPool: already recording to mempool_id ({}, {})", id.first,
                     id.second);
  }
  redirects_.reserve(redirects_.size() + 1);
  redirects_.push_back({&retain_pool(id), std::move(filter), reason});
  if (reason == RedirectFor::capture) ++captures_;
  set_mode(kRedirecting, true);
}

void DeviceAllocator::end_allocate_to_pool(PoolId id) {
  const Lock lock(mutex_);
  const auto redirect =
      std::find_if(redirects_.begin(), redirects_.end(), [&](const Redirect& r) { return r.pool->id == id; });
  CACHALOT_REQUIRE(redirect != redirects_.end(), "endAllocatePool: not currently recording to mempool_id ({}, {})",
                   id.first, id.second);
  if (redirect->reason == RedirectFor::capture) --captures_;
  redirects_.erase(redirect);
  set_mode(kRedirecting, !redirects_.empty());
}

// The latest redirection whose filter takes the stream (on this thread).
const DeviceAllocator::Redirect* DeviceAllocator::redirect_of(Stream stream) const {
  const auto redirect =
      std::find_if(redirects_.rbegin(), redirects_.rend(), [&](const Redirect& r) { return r.filter(stream); });
  return redirect == redirects_.rend() ? nullptr : &*redirect;
}

BlockPool& DeviceAllocator::pool_for(PoolKind kind, Stream stream) {
  const Redirect* redirect = redirect_of(stream);
  if (redirect == nullptr) return kind == PoolKind::small ? small() : large();
  require_awake(redirect->pool);
  return kind == PoolKind::small ? redirect->pool->small : redirect->pool->large;
}

bool DeviceAllocator::is_capturing() const {
  const Lock lock(mutex_);
  return capturing();
}

bool DeviceAllocator::thread_is_redirected() const {
  return std::any_of(redirects_.begin(), redirects_.end(),
                     [](const Redirect& r) { return r.reason == RedirectFor::thread && r.filter(nullptr); });
}

// --- checkpoints ----------------------------------------------------------------------------------------------------

std::vector<Block*> DeviceAllocator::heads_of(const PrivatePool& pool) const {
  std::vector<Block*> heads;
  for (const auto& [address, head] : heap_.segments()) {
    if (head->arena->pool.owner() == &pool) heads.push_back(head);
  }
  return heads;
}

bool DeviceAllocator::pool_has_exactly(PoolId id, const std::vector<void*>& live) const {
  const Lock lock(mutex_);
  const PrivatePool& pool = existing_pool(id, "Could not find pool of id");
  const std::unordered_set<Address> expected = [&] {
    std::unordered_set<Address> addresses;
    for (const void* ptr : live) addresses.insert(as_address(ptr));
    return addresses;
  }();
  std::size_t found = 0;
  for (const Block* block : heads_of(pool)) {
    for (; !block->is_edge(); block = block->next) {
      if (!block->has(Block::kAllocated)) continue;
      if (!expected.contains(block->address)) return false;
      ++found;
    }
  }
  return found == expected.size();
}

PoolCheckpoint DeviceAllocator::checkpoint_pool(PoolId id) const {
  const Lock lock(mutex_);
  const PrivatePool& pool = existing_pool(id, "Could not find pool of id");
  CACHALOT_REQUIRE(pool.use_count > 0, "Not expected to checkpoint freeable graph: pool ({}, {})", id.first, id.second);
  PoolCheckpoint checkpoint{id, {}};
  for (const Block* head : heads_of(pool)) {
    PoolCheckpoint::Segment segment{head->arena->stream.handle, head->arena->pool.kind(), {}};
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      CACHALOT_REQUIRE(!block->has(Block::kPending), "Events should have synchronized when checkpointing block {:#x}",
                       block->address);
      segment.blocks.push_back({block->address, block->size(), block->has(Block::kAllocated)});
    }
    checkpoint.segments.push_back(std::move(segment));
  }
  return checkpoint;
}

// Everything that could stop the restore half-way is checked first.
void DeviceAllocator::require_restorable(const PrivatePool& pool, const PoolCheckpoint& checkpoint) const {
  for (const Block* block : heads_of(pool)) {
    for (; !block->is_edge(); block = block->next) {
      CACHALOT_REQUIRE(block->is_free() || (block->has(Block::kAllocated) && block->uses.head == nullptr),
                       "Events should have synchronized when setting checkpointed block {:#x}", block->address);
    }
  }
  std::unordered_set<Address> seen;
  for (const PoolCheckpoint::Segment& segment : checkpoint.segments) {
    CACHALOT_REQUIRE(!segment.blocks.empty(), "a checkpointed segment of pool ({}, {}) has no blocks", pool.id.first,
                     pool.id.second);
    const Address address = segment.blocks.front().address;
    CACHALOT_REQUIRE(seen.insert(address).second, "checkpointed segment {:#x} is listed twice", address);
    const auto found = heap_.segments().find(address);
    CACHALOT_REQUIRE(found != heap_.segments().end() && found->second->arena->pool.owner() == &pool,
                     "could not find segment {:#x} in pool ({}, {})", address, pool.id.first, pool.id.second);
    std::size_t bytes = 0;
    for (const Block* block = found->second; !block->is_edge(); block = block->next) bytes += block->size();
    Address end = address;
    for (const PoolCheckpoint::Block& block : segment.blocks) {
      CACHALOT_REQUIRE(block.address == end && block.size != 0 && block.size % kBlockGranularity == 0,
                       "checkpointed block {:#x} does not tile its segment", block.address);
      end += block.size;
    }
    // A run of pages may have grown since.
    const bool has_grown = is_paged(pool.large) && end < address + bytes;
    CACHALOT_REQUIRE(end == address + bytes || has_grown, "checkpointed segment {:#x} has {} bytes, not {}", address,
                     bytes, end - address);
  }
}

// As PyTorch: free all that is live in the pool, take every block of the checkpoint, free those it shows as free.
RestoreResult DeviceAllocator::restore_pool(const PoolCheckpoint& checkpoint) {
  const Lock lock(mutex_);
  const SlowSection slow(*this);  // the page heap's tables change
  PrivatePool& pool = existing_pool(checkpoint.pool, "Could not find private pool id");
  require_awake(&pool);
  require_restorable(pool, checkpoint);
  gather_all();
  RestoreResult result;
  std::vector<Block*> live;
  for (Block* block : heads_of(pool)) {
    for (; !block->is_edge(); block = block->next) {
      if (block->has(Block::kAllocated)) live.push_back(block);
    }
  }
  for (Block* block : live) {
    result.freed.push_back(as_pointer(block->address));
    put_back_live(*block);
  }
  if (is_paged(pool.large)) join_kinds(pool);
  for (const PoolCheckpoint::Segment& segment : checkpoint.segments) {
    restore_segment(*heap_.segments().at(segment.blocks.front().address), segment, result);
  }
  return result;
}

// Pages that small and large requests took from each other are one again. All blocks of the pool are free.
void DeviceAllocator::join_kinds(PrivatePool& pool) {
  for (Block* block : heads_of(pool)) {
    BlockPool& to = pages_->range_of(block->address)->kind == PoolKind::small ? pool.small : pool.large;
    for (; !block->is_edge(); block = block->next) {
      if (&block->arena->pool == &to) continue;
      block = &pages_->hand_over(*block, block->address, block->end(), arena_of(to, block->arena->stream));
    }
  }
}

void DeviceAllocator::restore_segment(Block& head, const PoolCheckpoint::Segment& segment, RestoreResult& result) {
  std::vector<Block*> blocks;
  Block* block = &head;
  for (const PoolCheckpoint::Block& state : segment.blocks) {
    blocks.push_back(block);
    take_exactly(*block, state.size);  // the rest is the next ones'
    block = block->next;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (segment.blocks[i].allocated) {
      result.created.push_back(as_pointer(blocks[i]->address));
    } else {
      put_back_live(*blocks[i]);
    }
  }
}

}  // namespace cachalot
