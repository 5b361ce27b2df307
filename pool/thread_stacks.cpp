#include "thread_stacks.h"

#include <new>
#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

bool SlotStack::move_to_top(StreamKey stream, bool plain) {
  const std::uint32_t count = this->count();
  for (std::uint32_t i = count; i-- > 0;) {
    if (places_[i]->stream != stream || (plain && places_[i]->attention != 0)) continue;
    std::swap(places_[i], places_[count - 1]);
    return true;
  }
  return false;
}

void SlotStack::drop_oldest(std::uint32_t slots) {
  const std::uint32_t left = count() - slots;
  std::copy_n(places_.begin() + slots, left, places_.begin());
  count_.store(left, std::memory_order_relaxed);
  supply(-static_cast<std::int32_t>(slots));
}

void SlotStack::add_above(std::uint32_t slots) {
  count_.store(count() + slots, std::memory_order_relaxed);
  supply(static_cast<std::int32_t>(slots));
}

PoolSlot& SlotStack::take_top() {
  PoolSlot& slot = *places_[count() - 1];
  count_.store(count() - 1, std::memory_order_relaxed);
  supply(-1);
  return slot;
}

// While its thread is at work a peak may be missed.
ThreadSum::Gathered SlotStack::gather() {
  const std::int64_t acquired = acquired_.load(std::memory_order_relaxed);
  const std::uint32_t count = this->count();
  const std::int64_t live = supplied_ - count;
  const std::int64_t highest = std::max(live, supplied_ - lowest_.load(std::memory_order_relaxed));
  if (highest != live) lowest_.store(static_cast<std::int32_t>(count), std::memory_order_relaxed);
  const std::int64_t base = std::exchange(gathered_, live);
  return {acquired - std::exchange(gathered_acquired_, acquired), live - base, highest - base};
}

void StackOwner::forget_thread() { OwnStack::forget(); }

SlotStack* OwnStack::look_up() const {
  SlotStack* const mine = Parts::has_ended() ? nullptr : Parts::find(pool_);
  if (mine != nullptr) last_used_ = {pool_, mine};
  return mine;
}

// --- ThreadStacks ----------------------------------------------------------------------------------------------------

SlotStack* ThreadStacks::make_own() {
  if (OwnStack::Parts::has_ended() || !has_asymmetric_fences()) return nullptr;
  try {
    return &register_thread();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The slots that other threads keep beyond their new share come into the list.
SlotStack& ThreadStacks::register_thread() {
  unused_.reserve(stacks_.size() + 1);  // so that a thread can end without asking for memory
  if (unused_.empty()) {
    unused_.push_back(stacks_.emplace_back(std::make_unique<SlotStack>()).get());
    if (recalls_ > 0) unused_.back()->recall();
  }
  SlotStack& stack = *unused_.back();
  own_.assign(stack);
  unused_.pop_back();
  const StackRecall recall(*this);
  set_pool_slots(pool_slots_);
  return stack;
}

void ThreadStacks::retire(SlotStack& stack) {
  spill(stack, 0);
  unused_.push_back(&stack);
  set_pool_slots(pool_slots_);
}

void ThreadStacks::set_pool_slots(std::size_t slots) {
  pool_slots_ = slots;
  const std::uint32_t limit = share();
  for (const auto& stack : stacks_) stack->set_limit(limit);
  may_hold_ = limit * threads();
}

// Few slots never hide in other threads' stacks: together they hold a quarter at most. A single thread hides them from
// no other.
std::uint32_t ThreadStacks::share() const {
  std::size_t share = threads() == 1 ? pool_slots_ : pool_slots_ / (4 * threads());
  if (high_water_) share = std::min(share, *high_water_ / (2 * threads()));
  return static_cast<std::uint32_t>(std::min<std::size_t>(share, SlotStack::kPlaces));
}

void ThreadStacks::spill(SlotStack& stack, std::uint32_t left) {
  if (stack.count() <= left) return;
  const std::uint32_t slots = stack.count() - left;
  free_.push(stack.oldest(slots));
  stack.drop_oldest(slots);
}

void ThreadStacks::spill_own() {
  if (SlotStack* const mine = own()) spill(*mine, 0);
}

void ThreadStacks::refill(SlotStack& stack, StreamKey stream) {
  const std::uint32_t half = stack.limit() / 2;
  if (stack.count() >= half) return;
  const std::size_t slots = free_.pop(stream, stack.places_above().first(half - stack.count()));
  stack.add_above(static_cast<std::uint32_t>(slots));
}

void ThreadStacks::count_acquired() {
  if (own_.is_last_used()) return own_.find()->acquired_elsewhere();
  without_stack_.add(1);
}

void ThreadStacks::count_released() {
  if (own_.is_last_used()) return own_.find()->released_elsewhere();
  without_stack_.subtract(1);
}

void ThreadStacks::begin_recall() {
  if (recalls_++ > 0 || stacks_.empty()) return;
  for (const auto& stack : stacks_) stack->recall();
  heavy_fence();
  for (const auto& stack : stacks_) {
    stack->wait_until_left();
    spill(*stack, 0);
  }
}

void ThreadStacks::end_recall() {
  if (--recalls_ > 0) return;
  for (const auto& stack : stacks_) stack->end_recall();
}

void ThreadStacks::gather(PoolFigures& figures) {
  for (const auto& stack : stacks_) figures.add(stack->gather());
  figures.add(without_stack_.gather());
}

std::size_t ThreadStacks::metadata_bytes() const {
  return capacity_bytes(stacks_, unused_) + stacks_.size() * sizeof(SlotStack);
}

std::string ThreadStacks::first_broken_rule(std::size_t slots) const {
  if (pool_slots_ != slots) return formatted("the stacks share {} slots, and there are {}", pool_slots_, slots);
  std::size_t limits = 0;
  for (const auto& stack : stacks_) {
    if (!stack->is_recalled()) return "a stack was not recalled";
    if (!stack->is_empty()) return formatted("a stack that was recalled holds {} slots", stack->count());
    if (stack->limit() != share()) return formatted("a stack may hold {} slots, not {}", stack->limit(), share());
    if (std::ranges::find(unused_, stack.get()) == unused_.end()) limits += stack->limit();
  }
  if (!stacks_.empty() && std::max<std::size_t>(limits, share()) != may_hold_)
    return formatted("the stacks may hold {} slots, not {}", limits, may_hold_);
  if (unused_.capacity() < stacks_.size()) return "a thread could not end without host memory";
  if (high_water_ && may_hold_ > *high_water_) return "the stacks may hold more than the high-water mark";
  return "";
}

CACHALOT_END
