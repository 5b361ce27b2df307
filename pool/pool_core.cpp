#include "pool_core.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/bytes.h"
#include "base/format.h"

namespace cachalot {

namespace {

constexpr std::size_t kMostAlignment = kGiB;

}  // namespace

bool PoolCore::ever_grows(const TensorPoolOptions& options) {
  return options.when_empty == WhenEmpty::grow || (options.when_empty == WhenEmpty::wait && options.max_slots != 0);
}

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

// One acquire that the thread's stack could not serve.
struct PoolCore::Search {
  const StreamKey stream;
  const IfNone if_none;
  const Deadline deadline;
  std::optional<bool> captures = std::nullopt;  // whether the stream does; asked when first needed
  bool may_grow = true;
  bool recalls = false;
  bool has_waited = false;
  std::vector<PoolSlot*> refused = {};  // free, but not for this stream
};

PoolCore::PoolCore(const TensorSpec& spec, const TensorPoolOptions& options, std::shared_ptr<CachingAllocator> owned,
                   CachingAllocator& allocator, std::shared_ptr<PoolBudget> budget)
    : spec_(spec),
      options_(check(options)),
      memory_(std::move(owned), allocator, spec_, options_, std::move(budget)),
      id_(Parts::add_owner(*this)) {}

// --- acquire ---------------------------------------------------------------------------------------------------------

PoolSlot* PoolCore::acquire(Stream handle, IfNone if_none, Deadline deadline) {
  require_allocator();
  const KnownStream known = memory_.identify(handle);
  const StreamKey stream = known.key;
  if (PoolSlot* slot = acquire_from_stack(stream)) return slot;
  memory_.remember(known);
  Search search{.stream = stream, .if_none = if_none, .deadline = deadline};
  const Lock lock(mutex_);
  free_.expect(stream, 1);
  PoolSlot* slot = nullptr;
  try {
    slot = search_for(search);
  } catch (...) {
    free_.expect_fewer(stream, 1);
    end(search);
    throw;
  }
  if (slot == nullptr) free_.expect_fewer(stream, 1);
  end(search);
  return slot;
}

PoolSlot* PoolCore::acquire_from_stack(StreamKey stream) {
  if (!stream.is_immortal()) {  // otherwise the caller has tried
    if (PoolSlot* slot = try_acquire(stream)) return slot;
  }
  SlotStack* const mine = switch_to_registered();
  if (mine == nullptr || !mine->enter()) return nullptr;
  const bool found = mine->bring_up(stream, /*plain=*/true);
  mine->leave();
  return found ? try_acquire(stream) : nullptr;
}

PoolSlot* PoolCore::search_for(Search& search) {
  for (;;) {
    PoolSlot* const slot = find(search);
    if (slot == nullptr || prepare(*slot, search)) return slot;
    refuse(*slot, search);
  }
}

void PoolCore::end(Search& search) {
  put_back_refused(search);
  if (search.recalls) end_recall();
}

PoolSlot* PoolCore::find(Search& search) {
  for (;;) {
    if (PoolSlot* slot = take_of_stream(search.stream)) return slot;
    if (grow_instead_of_waiting(search)) continue;
    if (PoolSlot* slot = take_of_other_stream(search)) return slot;
    if (grow(search) || recall_for(search)) continue;
    if (!wait(search)) return nullptr;
  }
}

PoolSlot* PoolCore::take_of_stream(StreamKey stream) {
  SlotStack* const mine = stack_of_this_thread();
  if (mine != nullptr && mine->bring_up(stream, /*plain=*/false)) {
    PoolSlot& slot = mine->top();
    mine->pop();
    return &slot;
  }
  PoolSlot* const slot = free_.take(stream);
  if (slot != nullptr && mine != nullptr && recalls_ == 0) refill(*mine, stream);
  return slot;
}

// To half of what it may hold.
void PoolCore::refill(SlotStack& stack, StreamKey stream) {
  while (stack.count() < stack.limit() / 2) {
    PoolSlot* const slot = free_.take(stream);
    if (slot == nullptr) return;
    stack.push(*slot);
  }
}

PoolSlot* PoolCore::take_of_other_stream(Search& search) {
  SlotStack* const mine = stack_of_this_thread();
  if (mine != nullptr) spill(*mine, 0);
  if (free_.size() == 0) return nullptr;
  if (!search.captures) {
    const Unlocked unlocked(mutex_);
    search.captures = memory_.captures(search.stream);
  }
  if (PoolSlot* slot = free_.take(search.stream)) return slot;
  return *search.captures ? nullptr : free_.take_any();
}

// A pool that would rather wait on the GPU than have no tensor at all takes no notice that there is no more memory.
bool PoolCore::grow_instead_of_waiting(Search& search) {
  if (options_.other_stream != OtherStream::other_slot) return false;
  try {
    return grow(search);
  } catch (const OutOfMemory&) {
    if (SlotStack* mine = stack_of_this_thread()) spill(*mine, 0);
    if (free_.size() == 0) throw;
    search.may_grow = false;
    return false;
  }
}

// True: look again.
bool PoolCore::grow(const Search& search) {
  if (!search.may_grow) return false;
  const std::size_t slots = may_add();
  if (growing_ || (slots == 0 && trimming_)) {
    changed_.wait(mutex_);
    return true;
  }
  if (slots == 0) return false;
  add_slab(slots, search.stream);
  return true;
}

bool PoolCore::recall_for(Search& search) {
  if (search.recalls) return false;
  begin_recall();
  search.recalls = true;
  return true;
}

// Everything is recalled, so that whoever releases finds out that somebody waits.
bool PoolCore::wait(Search& search) {
  if (search.if_none == IfNone::fail) return false;
  if (search.deadline && std::chrono::steady_clock::now() >= *search.deadline) return false;
  put_back_refused(search);
  if (!std::exchange(search.has_waited, true)) ++stats_.host_waits;
  ++waiters_;
  if (search.deadline) {
    changed_.wait_until(mutex_, *search.deadline);
  } else {
    changed_.wait(mutex_);
  }
  --waiters_;
  return true;
}

// The slot is the stream's to use when this returns. False: a capture is in the way.
bool PoolCore::prepare(PoolSlot& slot, Search& search) {
  const bool is_ready = slot.stream == search.stream && (slot.attention & ~PoolSlot::kUnused) == 0;
  std::uint64_t waits = 0;
  bool may = true;
  try {
    if (!is_ready) {
      const Unlocked unlocked(mutex_);
      may = make_ready(slot, search, waits);
    }
  } catch (...) {
    stats_.stream_waits += waits;
    free_.put(slot);
    notify();
    throw;
  }
  stats_.stream_waits += waits;
  if (may) hand_out(slot, search.stream);
  return may;
}

// Without the mutex held: the slot is nobody else's.
bool PoolCore::make_ready(const PoolSlot& slot, Search& search, std::uint64_t& waits) {
  if (slot.stream != search.stream || (slot.attention & PoolSlot::kOtherStreams) != 0) {
    if (!search.captures) search.captures = memory_.captures(search.stream);
    if (*search.captures || !memory_.order(slot, search.stream, waits)) return false;
  }
  memory_.fill(slot, search.stream);
  return true;
}

// The search has expected one of its stream.
void PoolCore::hand_out(PoolSlot& slot, StreamKey stream) {
  free_.expect_fewer(slot.stream, 1);
  slot.stream = stream;
  if (slot.others != nullptr) slot.others->clear();
  if ((slot.attention & PoolSlot::kUnused) != 0) ++first_uses_;
  slot.attention &= PoolSlot::kMustBeFilled;
  live_of_this_thread().add(1);
  gather();
}

void PoolCore::refuse(PoolSlot& slot, Search& search) {
  try {
    search.refused.push_back(&slot);
  } catch (...) {
    free_.put(slot);
    throw;
  }
}

void PoolCore::put_back_refused(Search& search) {
  if (search.refused.empty()) return;
  for (PoolSlot* slot : search.refused) free_.put(*slot);
  search.refused.clear();
  notify();
}

void PoolCore::throw_empty() const {
  throw OutOfMemory(formatted("the pool of {} has no tensor left and may not grow: initial_slots is {}, max_slots {}{}",
                              to_string(spec_), options_.initial_slots, options_.max_slots,
                              options_.when_empty == WhenEmpty::fail ? ", and it fails when it is empty" : ""),
                    spec_.device, tensor_bytes());
}

void PoolCore::stream_ends(Stream stream) {
  require_allocator();
  memory_.end_stream(stream);
}

// --- release ---------------------------------------------------------------------------------------------------------

void PoolCore::record_stream(PoolSlot& slot, Stream other) { record(slot, memory_.know(other)); }

void PoolCore::record(PoolSlot& slot, StreamKey other) {
  if (other == slot.stream) return;
  if (slot.others == nullptr) slot.others = std::make_unique<std::vector<StreamKey>>();
  if (std::ranges::find(*slot.others, other) == slot.others->end()) slot.others->push_back(other);
  slot.attention |= PoolSlot::kOtherStreams;
}

// A wait too many where it then cannot be recorded.
void PoolCore::share(PoolSlot& slot, Stream other_handle) {
  require_own_process();
  const StreamKey other = memory_.know(other_handle);
  if (other == slot.stream) return;
  CACHALOT_REQUIRE(!memory_.captures(slot.stream) && !memory_.captures(other),
                   "a stream captures: the tensor of {} can be shared with stream {} before or after the capture",
                   to_string(spec_), static_cast<const void*>(other_handle));
  memory_.put_before(slot.stream, other);
  record(slot, other);
  const Lock lock(mutex_);
  ++stats_.stream_waits;
}

void PoolCore::release(PoolSlot& slot) noexcept {
  if (is_inherited()) return;
  if (switch_to_registered() != nullptr && try_release(slot)) return;
  if (release_past_stack(slot)) delete this;
}

bool PoolCore::release_past_stack(PoolSlot& slot) noexcept {
  const Lock lock(mutex_);
  SlotStack* const mine = closed_ ? nullptr : stack_of_this_thread();
  live_of_this_thread().subtract(1);
  if (mine == nullptr || recalls_ > 0 || mine->limit() == 0) {
    free_.put(slot);
    notify();
  } else {
    if (mine->is_full()) spill(*mine, mine->limit() / 2);
    mine->push(slot);
  }
  gather();
  trim_above_high_water();
  return closed_ && free_.size() == slots_;
}

void PoolCore::close() {
  if (is_inherited()) return;
  Parts::remove_owner(id_);
  bool is_last = false;
  {
    const Lock lock(mutex_);
    while (growing_ || trimming_) changed_.wait(mutex_);
    closed_ = true;
    begin_recall();
    is_last = free_.size() == slots_;
  }
  if (is_last) delete this;
}

// --- stacks ----------------------------------------------------------------------------------------------------------

SlotStack* PoolCore::switch_to_registered() {
  if (hot_.owner == id_) return hot_.stack;
  SlotStack* const mine = Parts::has_ended() ? nullptr : Parts::find(id_);
  if (mine != nullptr) hot_ = {id_, mine};
  return mine;
}

// nullptr: for a thread that is ending, where there is no host memory for one, and without asymmetric fences.
SlotStack* PoolCore::stack_of_this_thread() {
  SlotStack* mine = switch_to_registered();
  if (mine != nullptr || Parts::has_ended() || !has_asymmetric_fences()) return mine;
  try {
    mine = &register_thread();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  hot_ = {id_, mine};
  return mine;
}

// What the others have beyond their new share comes into the list.
SlotStack& PoolCore::register_thread() {
  unused_.reserve(stacks_.size() + 1);  // so that a thread can end without asking for memory
  if (unused_.empty()) {
    unused_.push_back(stacks_.emplace_back(std::make_unique<SlotStack>()).get());
    if (recalls_ > 0) unused_.back()->recall();
  }
  SlotStack& stack = *unused_.back();
  Parts::add(id_, stack);
  unused_.pop_back();
  begin_recall();
  set_limits();
  end_recall();
  return stack;
}

// The thread ends. Its stack, and what it has counted, are kept for another.
void PoolCore::retire(SlotStack& stack) {
  const Lock lock(mutex_);
  spill(stack, 0);
  unused_.push_back(&stack);
  set_limits();
  notify();
}

// Few slots never hide in another thread's stack: together they hold a quarter at most. A thread by itself hides them
// from nobody.
void PoolCore::set_limits() {
  const std::size_t threads = std::max<std::size_t>(stacks_.size() - unused_.size(), 1);
  std::size_t share = threads == 1 ? slots_ : slots_ / (4 * threads);
  if (options_.high_water) share = std::min(share, *options_.high_water / (2 * threads));
  const auto limit = static_cast<std::uint32_t>(std::min<std::size_t>(share, SlotStack::kPlaces));
  for (const auto& stack : stacks_) stack->set_limit(limit);
  stacks_may_hold_ = limit * threads;
}

// The stack is this thread's, or recalled.
void PoolCore::spill(SlotStack& stack, std::uint32_t left) {
  if (stack.count() <= left) return;
  const std::uint32_t slots = stack.count() - left;
  for (PoolSlot* slot : stack.lowest(slots)) free_.put(*slot);
  stack.drop_lowest(slots);
}

void PoolCore::begin_recall() {
  if (recalls_++ > 0 || stacks_.empty()) return;
  for (const auto& stack : stacks_) stack->recall();
  heavy_fence();
  for (const auto& stack : stacks_) {
    stack->wait_until_left();
    spill(*stack, 0);
  }
}

void PoolCore::end_recall() {
  if (--recalls_ > 0) return;
  for (const auto& stack : stacks_) stack->give_back();
}

void PoolCore::notify() {
  if (waiters_ > 0) changed_.notify_all();
}

}  // namespace cachalot
