#include "pool_search.h"

#include <utility>

#include "slab_changes.h"

CACHALOT_BEGIN

PoolSlot* PoolSearch::run() {
  const Lock lock(books_.mutex);
  books_.free.reserve(stream_, 1);  // for the slot that will be the stream's
  PoolSlot* slot = nullptr;
  try {
    slot = find_usable();
  } catch (...) {
    finish(nullptr);
    throw;
  }
  finish(slot);
  return slot;
}

void PoolSearch::finish(const PoolSlot* found) {
  if (found == nullptr) books_.free.unreserve(stream_, 1);
  free_refused();
  recall_.reset();
}

PoolSlot* PoolSearch::find_usable() {
  for (;;) {
    PoolSlot* const slot = find();
    if (slot == nullptr || make_usable(*slot)) return slot;
    keep_refused(*slot);
  }
}

PoolSlot* PoolSearch::find() {
  for (;;) {
    if (PoolSlot* slot = find_of_same_stream()) return slot;
    if (grow_instead_of_waiting()) continue;
    if (PoolSlot* slot = find_of_other_stream()) return slot;
    if (grow() || recall_once()) continue;
    if (!await_release()) return nullptr;
  }
}

PoolSlot* PoolSearch::find_of_same_stream() {
  SlotStack* const mine = books_.stacks.own();
  if (mine != nullptr && mine->move_to_top(stream_, /*plain=*/false)) return &mine->take_top();
  PoolSlot* const slot = books_.free.pop(stream_);
  if (slot != nullptr && mine != nullptr && !books_.stacks.is_recalled()) books_.stacks.refill(*mine, stream_);
  return slot;
}

PoolSlot* PoolSearch::find_of_other_stream() {
  books_.stacks.spill_own();
  if (books_.free.size() == 0) return nullptr;
  if (!captures_) {
    const Unlocked unlocked(books_.mutex);
    captures();
  }
  if (PoolSlot* slot = books_.free.pop(stream_)) return slot;
  return *captures_ ? nullptr : books_.free.pop_any();
}

// Without the mutex held.
bool PoolSearch::captures() {
  if (!captures_) captures_ = books_.memory.streams().captures(stream_);
  return *captures_;
}

// No memory is no error here: a free slot and a wait on the GPU are better than no tensor.
bool PoolSearch::grow_instead_of_waiting() {
  if (books_.options.other_stream != OtherStream::other_slot) return false;
  try {
    return grow();
  } catch (const OutOfMemory&) {
    books_.stacks.spill_own();
    if (books_.free.size() == 0) throw;
    may_grow_ = false;
    return false;
  }
}

// True: there may be slots now.
bool PoolSearch::grow() {
  if (!may_grow_) return false;
  const std::size_t slots = next_slab_slots(books_);
  if (books_.growing || (slots == 0 && books_.trimming)) {
    books_.changed.wait(books_.mutex);
    return true;
  }
  if (slots == 0) return false;
  add_slab(books_, slots, stream_);
  return true;
}

// True: there may be slots now.
bool PoolSearch::recall_once() {
  if (recall_) return false;
  recall_.emplace(books_.stacks);
  return true;
}

namespace {

// A thread that is cancelled in its wait counts no longer, either.
class CountedWaiter {
 public:
  explicit CountedWaiter(std::size_t& waiters) : waiters_(waiters) { ++waiters_; }
  ~CountedWaiter() { --waiters_; }
  CountedWaiter(const CountedWaiter&) = delete;
  CountedWaiter& operator=(const CountedWaiter&) = delete;

 private:
  std::size_t& waiters_;
};

}  // namespace

// The recall lasts, so every release takes the mutex and sees that a thread waits. False: the search may not wait.
bool PoolSearch::await_release() {
  if (if_none_ == IfNone::fail) return false;
  if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) return false;
  free_refused();
  if (!std::exchange(has_waited_, true)) books_.figures.host_waited();
  const CountedWaiter counted(books_.waiters);
  if (deadline_) {
    books_.changed.wait_until(books_.mutex, *deadline_);
  } else {
    books_.changed.wait(books_.mutex);
  }
  return true;
}

// False: a capture is in the way.
bool PoolSearch::make_usable(PoolSlot& slot) {
  const bool is_ready = slot.stream == stream_ && (slot.attention & ~PoolSlot::kUnused) == 0;
  std::uint64_t waits = 0;
  bool may_use = true;
  try {
    if (!is_ready) {
      const Unlocked unlocked(books_.mutex);
      may_use = queue_waits_and_fill(slot, waits);
    }
  } catch (...) {
    books_.figures.streams_waited(waits);
    books_.free.push(slot);
    books_.notify_waiters();
    throw;
  }
  books_.figures.streams_waited(waits);
  if (may_use) count_as_acquired(slot);
  return may_use;
}

// Without the mutex held: the slot is in no list.
bool PoolSearch::queue_waits_and_fill(const PoolSlot& slot, std::uint64_t& waits) {
  if (slot.stream != stream_ || slot.has_other_users()) {
    if (captures() || !books_.memory.streams().put_users_before(slot, stream_, waits)) return false;
  }
  books_.memory.fill(slot, stream_);
  return true;
}

// The place that run() has reserved is the slot's now.
void PoolSearch::count_as_acquired(PoolSlot& slot) {
  books_.free.unreserve(slot.stream, 1);
  slot.set_only_user(stream_);
  if ((slot.attention & PoolSlot::kUnused) != 0) books_.figures.slot_used_first();
  slot.attention &= ~PoolSlot::kUnused;
  books_.stacks.count_acquired();
  books_.stacks.gather(books_.figures);
}

void PoolSearch::keep_refused(PoolSlot& slot) {
  try {
    refused_.push_back(&slot);
  } catch (...) {
    books_.free.push(slot);
    throw;
  }
}

void PoolSearch::free_refused() {
  if (refused_.empty()) return;
  for (PoolSlot* slot : refused_) books_.free.push(*slot);
  refused_.clear();
  books_.notify_waiters();
}

CACHALOT_END
