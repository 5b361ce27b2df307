// The guard around what takes memory away from blocks that stay, or makes others of them: sleep and checkpoints.
#include <algorithm>
#include <mutex>
#include <utility>

#include "device/addresses.h"
#include "guard/guard.h"

namespace cachalot {

namespace {

using Pattern = GuardedBlock::Pattern;

}  // namespace

// --- sleep ----------------------------------------------------------------------------------------------------------

void Guard::put_to_sleep(const std::function<void()>& release_physical) {
  drain();
  reporting([&](Reports& found) {
    const std::unique_lock memory(memory_);
    check_all(found);
    try {
      release_physical();
    } catch (...) {  // a part may be asleep
      mark_sleepers();
      throw;
    }
    mark_sleepers();
    return true;
  });
}

bool Guard::sleeps(const GuardedBlock& block) const {
  const Block* const heap_block = this->heap_block(block.heap_address());
  return heap_block != nullptr && cachalot::sleeps(heap_.state, *heap_block, as_pointer(block.heap_address()));
}

void Guard::mark_sleepers() {
  const std::lock_guard lock(mutex_);
  for (auto& [address, block] : live_) {
    if (block.pattern != Pattern::canaries || !sleeps(block)) continue;
    block.slept = true;
    block.pattern = Pattern::none;
  }
}

void Guard::wake() {
  const std::unique_lock memory(memory_);
  const std::lock_guard lock(mutex_);
  for (auto& [address, block] : live_) {
    if (!block.slept || sleeps(block) || !may_wait(block.stream)) continue;
    write_canaries(block);
    block.slept = false;
  }
}

// --- checkpoints ----------------------------------------------------------------------------------------------------

RestoreResult Guard::restore(const PoolCheckpoint& checkpoint) {
  drain();
  const CallStack stack = stack_now();
  const std::unique_lock memory(memory_);
  RestoreResult result = heap_.checkpoints.restore_pool(checkpoint);
  const auto as_users = [this](std::vector<void*>& pointers) {
    for (void*& pointer : pointers) pointer = as_pointer(as_address(pointer) + front_);
  };
  as_users(result.freed);
  as_users(result.created);
  std::erase_if(result.freed, [this](const void* ptr) { return !forget_restored(as_address(ptr)); });
  for (const void* ptr : result.created) adopt_restored(as_address(ptr), stack);
  return result;
}

// False: its user had freed it already.
bool Guard::forget_restored(Address address) {
  Blocks::node_type node;
  {
    const std::lock_guard lock(mutex_);
    node = live_.extract(address);
    if (node.empty()) forget_quarantined(address);
  }
  if (!node.empty()) tell(Change::Action::free_requested, node.mapped());
  return !node.empty();
}

// Under mutex_. What a capture kept there.
void Guard::forget_quarantined(Address address) {
  const auto found = std::ranges::find(quarantine_, address, &GuardedBlock::address);
  if (found == quarantine_.end()) return;
  quarantine_bytes_ -= found->footprint();
  quarantine_.erase(found);
}

// What was asked for is not known any more: all of the heap's block is the user's.
void Guard::adopt_restored(Address address, const CallStack& stack) {
  GuardedBlock block;
  block.address = address;
  block.front = front_;
  block.heap_bytes = heap_sizes(block.heap_address()).value().allocated;
  block.bytes = block.heap_bytes - front_;
  block.allocated = call_now(stack);
  remember(block);
  tell(Change::Action::alloc, block);
}

}  // namespace cachalot
