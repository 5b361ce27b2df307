// The guard around what takes memory away from blocks that stay, or makes others of them: sleep and checkpoints.
#include <algorithm>
#include <utility>
#include <vector>

#include "device/addresses.h"
#include "guard/guard.h"

CACHALOT_BEGIN

// --- sleep ----------------------------------------------------------------------------------------------------------

void Guard::put_to_sleep(const std::function<void()>& release_physical) {
  drain();
  reporting([&](Reports& found) {
    const Lock looking(memory_.mutex);
    compare_all(found);
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

void Guard::mark_sleepers() {
  books_.for_each_live([&](GuardedBlock& block) {
    if (block.pattern != GuardedBlock::Pattern::canaries || !blocks_.sleeps(block)) return;
    block.slept = true;
    block.pattern = GuardedBlock::Pattern::none;
  });
}

void Guard::wake() {
  const Lock looking(memory_.mutex);
  books_.for_each_live([&](GuardedBlock& block) {
    memory_.mutex.assert_held();
    if (!block.slept || blocks_.sleeps(block) || !memory_.may_wait(block.stream)) return;
    memory_.write_canaries(block);
    block.slept = false;
  });
}

// --- checkpoints ----------------------------------------------------------------------------------------------------

RestoreResult Guard::restore(const PoolCheckpoint& checkpoint) {
  drain();
  const CallStack stack = calls_.stack_now();
  const Lock looking(memory_.mutex);
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

// False: its user had freed it already. Then a capture may have kept it in quarantine.
bool Guard::forget_restored(Address address) {
  const GuardBooks::Entry entry = books_.extract(address);
  if (entry.empty()) {
    quarantine_.forget(address);
    return false;
  }
  blocks_.tell_watchers(Change::Action::free_requested, entry.mapped());
  return true;
}

// What was asked for is not known any more: all of the heap's block is the user's.
void Guard::adopt_restored(Address address, const CallStack& stack) {
  GuardedBlock block;
  block.address = address;
  block.front = front_;
  block.heap_bytes = blocks_.sizes(block.heap_address()).value().allocated;
  block.bytes = block.heap_bytes - front_;
  block.allocated = calls_.next(stack);
  books_.add(block);
  blocks_.tell_watchers(Change::Action::alloc, block);
}

CACHALOT_END
