#include "pool_core.h"

#include <bit>
#include <exception>
#include <utility>

#include "base/format.h"

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

// Requires that the mutex is not held.
bool PoolSearch::captures() {
  if (!captures_) captures_ = books_.memory.streams().captures(stream_);
  return *captures_;
}

// A lack of memory is not an error here: a free slot and a wait on the GPU are better than no tensor.
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

// Returns true if there may be slots now.
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

// Returns true if there may be slots now.
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

// The recall lasts, so every release takes the mutex and sees that a thread waits. Returns false if the search may not
// wait.
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

// Returns false if a capture forbids it.
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

// Requires that the mutex is not held; the slot is in no list.
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

namespace {

constexpr std::size_t kMostAlignment = kGiB;

}  // namespace

const TensorPoolOptions& PoolCore::check(const TensorPoolOptions& options) {
  CACHALOT_REQUIRE(std::has_single_bit(options.alignment) && options.alignment <= kMostAlignment,
                   "alignment is {}: it is a power of two, at most {}", options.alignment, kMostAlignment);
  CACHALOT_REQUIRE(options.growth_step > 0, "growth_step is {}: it is at least 1", options.growth_step);
  CACHALOT_REQUIRE(options.max_slots == 0 || options.initial_slots <= options.max_slots,
                   "initial_slots is {}: it is at most max_slots, {}", options.initial_slots, options.max_slots);
  CACHALOT_REQUIRE(ever_grows(options) || options.initial_slots > 0,
                   "initial_slots is {}: a pool that never grows (when_empty) needs some", options.initial_slots);
  return options;
}

// The stack's owner comes last: a pool whose construction fails is not an owner.
PoolCore::PoolCore(const TensorSpec& spec, const TensorPoolOptions& options, std::shared_ptr<CachingAllocator> owned,
                   CachingAllocator& allocator, std::shared_ptr<PoolBudget> budget)
    : spec_(spec),
      books_(spec_, check(options), own_stack_, std::move(owned), allocator, std::move(budget)),
      own_stack_(*this) {}

// Frees the slabs. If the device refuses, the slab stays the allocator's.
PoolCore::~PoolCore() {
  for (const auto& slab : books_.slabs) {
    try {
      books_.memory.deallocate(*slab);
    } catch (const std::exception&) {
    }
  }
}

void PoolCore::make_initial_slots() {
  const Lock lock(books_.mutex);
  if (options().initial_slots == 0) return;
  add_slab(books_, options().initial_slots, books_.memory.streams().remember(options().stream));
}

void PoolCore::close() {
  if (is_inherited()) return;
  own_stack_.remove_owner();
  bool is_last = false;
  {
    const Lock lock(books_.mutex);
    while (books_.growing || books_.trimming) books_.changed.wait(books_.mutex);
    books_.closed.emplace(books_.stacks);
    is_last = books_.free.size() == books_.figures.slots();
  }
  if (is_last) delete this;
}

void PoolCore::require_allocator() const {
  require_own_process();
  books_.memory.require_allocator();
}

// --- acquire ---------------------------------------------------------------------------------------------------------

PoolSlot* PoolCore::acquire(Stream handle, IfNone if_none, Deadline deadline) {
  require_allocator();
  PoolStreams& streams = books_.memory.streams();
  const KnownStream stream = streams.identify(handle);
  if (PoolSlot* slot = acquire_from_stack(stream.key)) return slot;
  streams.remember(stream);
  return PoolSearch(books_, stream.key, if_none, deadline).run();
}

PoolSlot* PoolCore::acquire_from_stack(StreamKey stream) {
  SlotStack* const mine = own_stack_.find();
  if (mine == nullptr || !mine->enter()) return nullptr;
  PoolSlot* const slot = mine->move_to_top(stream, /*plain=*/true) ? mine->acquire(stream) : nullptr;
  mine->leave();
  return slot;
}

void PoolCore::throw_empty() const {
  throw OutOfMemory(formatted("the pool of {} has no tensor left and may not grow: initial_slots is {}, max_slots {}{}",
                              to_string(spec_), options().initial_slots, options().max_slots,
                              options().when_empty == WhenEmpty::fail ? ", and it fails when it is empty" : ""),
                    spec_.device, tensor_bytes());
}

// --- release ---------------------------------------------------------------------------------------------------------

void PoolCore::release(PoolSlot& slot) noexcept {
  if (is_inherited()) return;
  if (release_to_stack(slot)) return;
  if (release_with_mutex(slot)) delete this;
}

bool PoolCore::release_to_stack(PoolSlot& slot) noexcept {
  SlotStack* const mine = own_stack_.find();
  if (mine == nullptr || !mine->enter()) return false;
  const bool has_place = mine->release(slot);
  mine->leave();
  return has_place;
}

// Returns true if it was the last tensor of a closed pool.
bool PoolCore::release_with_mutex(PoolSlot& slot) noexcept {
  const Lock lock(books_.mutex);
  ThreadStacks& stacks = books_.stacks;
  SlotStack* const mine = books_.closed ? nullptr : stacks.own();
  if (mine == nullptr || stacks.is_recalled() || mine->limit() == 0) {
    books_.free.push(slot);
    stacks.count_released();
    books_.notify_waiters();
  } else {
    if (mine->is_full()) stacks.spill(*mine, mine->limit() / 2);
    mine->release(slot);
  }
  books_.stacks.gather(books_.figures);
  trim_above_high_water(books_);
  return books_.closed && books_.free.size() == books_.figures.slots();
}

void PoolCore::retire(SlotStack& stack) {
  const Lock lock(books_.mutex);
  books_.stacks.retire(stack);
  books_.notify_waiters();
}

// --- streams ---------------------------------------------------------------------------------------------------------

void PoolCore::record_stream(PoolSlot& slot, Stream other) {
  slot.record_user(books_.memory.streams().remember(other));
}

// Shares the slot with another stream. If the use cannot be recorded, that stream has waited needlessly.
void PoolCore::share(PoolSlot& slot, Stream other_handle) {
  require_own_process();
  PoolStreams& streams = books_.memory.streams();
  const StreamKey other = streams.remember(other_handle);
  if (other == slot.stream) return;
  CACHALOT_REQUIRE(!streams.captures(slot.stream) && !streams.captures(other),
                   "a stream captures: the tensor of {} can be shared with stream {} before or after the capture",
                   to_string(spec_), static_cast<const void*>(other_handle));
  streams.put_before(slot.stream, other);
  slot.record_user(other);
  const Lock lock(books_.mutex);
  books_.figures.streams_waited(1);
}

void PoolCore::stream_ends(Stream stream) {
  require_allocator();
  books_.memory.streams().end(stream);
}

// --- trim ------------------------------------------------------------------------------------------------------------

std::size_t PoolCore::trim(std::size_t keep) {
  const Lock lock(books_.mutex);
  books_.await_trimming();
  return trim_slabs(books_, keep);
}

// --- figures ---------------------------------------------------------------------------------------------------------

PoolStats PoolCore::stats() {
  const Lock lock(books_.mutex);
  books_.stacks.gather(books_.figures);
  return books_.figures.stats();
}

std::string PoolCore::validate() {
  const Lock lock(books_.mutex);
  return first_broken_rule(books_);
}

std::size_t PoolCore::metadata_bytes() {
  const Lock lock(books_.mutex);
  return sizeof(*this) + books_.free.metadata_bytes() + books_.slabs.metadata_bytes() + books_.stacks.metadata_bytes() +
         books_.memory.streams().metadata_bytes();
}

CACHALOT_END
