#include "heap/pending_frees.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

DeferredFrees::DeferredFrees(Device& device, std::function<void(Block&, Held&)> done)
    : device_(device), done_(std::move(done)) {}

// No other thread uses it any more.
DeferredFrees::~DeferredFrees() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  for (const auto& queue : queues_) {
    while (!queue->empty()) events_.push_back(queue->pop_front().event);
  }
  for (const StreamUse& use : uses_) {
    if (use.has_ended) events_.push_back(use.event);
  }
  for (Event event : events_) {
    try {
      device_.event_destroy(event);
    } catch (const CudaError&) {  // the device may be gone at exit; the error cannot be reported
    }
  }
}

StreamUse& DeferredFrees::make_use() {
  if (unused_ == nullptr) return uses_.emplace_back();
  StreamUse& use = *unused_;
  unused_ = use.next;
  return use;
}

void DeferredFrees::retire_uses(StreamUse* uses) {
  while (uses != nullptr) {
    StreamUse* next = uses->next;
    *uses = {{}, nullptr, false, unused_};
    unused_ = uses;
    uses = next;
  }
}

void DeferredFrees::add_use(Block& block, const KnownStream& stream) {
  for (const StreamUse* use = block.uses.head; use != nullptr; use = use->next) {
    if (use->stream == stream) return;
  }
  StreamUse& use = make_use();
  use = {stream, nullptr, false, block.uses.head};
  block.uses.head = &use;
}

Event DeferredFrees::pop_event() {
  const Event event = events_.back();
  events_.pop_back();
  return event;
}

// Ends a stream under the lock throughout, once no thread records any more: so none of the blocks is freed meanwhile.
void DeferredFrees::end_stream(const KnownStream& stream, Held& held) {
  while (recording_ != 0) {
    const Unlocked unlocked(held);
    std::this_thread::yield();
  }
  for (StreamUse& use : uses_) {
    if (use.stream != stream || use.event != nullptr) continue;
    if (events_.empty()) events_.push_back(device_.event_create());
    device_.event_record(events_.back(), stream.handle);
    use.event = pop_event();
    use.has_ended = true;
  }
}

void DeferredFrees::wait_for_uses(Block& block, Held& held) {
  StreamUse* const uses = block.uses.head;
  block.uses.head = nullptr;
  for (StreamUse* use = uses; use != nullptr && !events_.empty(); use = use->next) {
    if (!use->has_ended) use->event = pop_event();
  }
  ++recording_;
  try {
    const Unlocked unlocked(held);
    for (StreamUse* use = uses; use != nullptr; use = use->next) {
      if (use->has_ended) continue;
      if (use->event == nullptr) use->event = device_.event_create();
      record_or_wait(device_, use->event, use->stream);
    }
  } catch (...) {
    --recording_;
    for (StreamUse* use = uses; use != nullptr; use = use->next) {
      if (use->has_ended) continue;
      if (use->event != nullptr) events_.push_back(use->event);
      use->event = nullptr;
    }
    block.uses.head = uses;
    throw;
  }
  --recording_;
  for (StreamUse* use = uses; use != nullptr; use = use->next) {
    ++block.uses.pending_events;
    enqueue(use->stream, {use->event, &block});
  }
  retire_uses(uses);
}

void DeferredFrees::forget_uses(Block& block) { retire_uses(std::exchange(block.uses.head, nullptr)); }

DeferredFrees::Queue& DeferredFrees::queue_for(const KnownStream& stream) {
  if (const auto found = queue_of_.find(stream.key); found != queue_of_.end()) return *found->second;
  // An empty queue is taken over, so that streams that come and go do not leave queues behind.
  const auto idle = std::find_if(queues_.begin(), queues_.end(),
                                 [](const auto& queue) { return queue->empty() && queue->taken == 0; });
  if (idle != queues_.end() && queues_.size() >= 32) {
    queue_of_.erase((*idle)->stream.key);
    (*idle)->stream = stream;
    queue_of_.emplace(stream.key, idle->get());
    return **idle;
  }
  queues_.push_back(std::make_unique<Queue>());
  queues_.back()->stream = stream;
  queue_of_.emplace(stream.key, queues_.back().get());
  return *queues_.back();
}

void DeferredFrees::enqueue(const KnownStream& stream, const Pending& pending) {
  Queue& queue = queue_for(stream);
  if (queue.empty()) queue.oldest_is_new = true;
  queue.push_back(pending);
  ++pending_;
}

bool DeferredFrees::is_due(const Queue& queue) {
  if (queue.oldest_is_new) return true;
  const std::optional<std::uint64_t> hint = device_.completion_hint(queue.stream.handle);
  return !hint.has_value() || hint != queue.hint_when_asked;
}

// Asks the oldest event; puts it back if it is not done. The hint is read first: what completes after it moves it again.
bool DeferredFrees::oldest_is_done(Queue& queue, const Pending& oldest, Held& held) {
  std::optional<std::uint64_t> hint;
  bool done = false;
  ++queue.taken;
  try {
    const Unlocked unlocked(held);
    hint = device_.completion_hint(queue.stream.handle);
    done = device_.event_query(oldest.event);
  } catch (...) {
    --queue.taken;
    queue.push_front(oldest);
    throw;
  }
  --queue.taken;
  if (!done) {
    queue.push_front(oldest);
    queue.hint_when_asked = hint;
    queue.oldest_is_new = false;
  }
  return done;
}

void DeferredFrees::finish(const Pending& pending, Held& held) {
  --pending_;
  events_.push_back(pending.event);
  if (--pending.block->uses.pending_events == 0) done_(*pending.block, held);
}

void DeferredFrees::reclaim(Queue& queue, Held& held) {
  while (!queue.empty() && is_due(queue)) {
    const Pending oldest = queue.pop_front();
    queue.oldest_is_new = true;  // the next one
    if (!oldest_is_done(queue, oldest, held)) return;
    finish(oldest, held);
  }
  if (queue.empty()) queue.oldest_is_new = false;
}

void DeferredFrees::reclaim(Held& held) {
  for (std::size_t i = 0; i < queues_.size() && pending_ != 0; ++i) reclaim(*queues_[i], held);
}

void DeferredFrees::synchronize(FunctionRef<bool(const Block&)> selects, Held& held) {
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = *queues_[i];
    for (std::size_t left = queue.size(); left > 0 && !queue.empty(); --left) {
      const Pending oldest = queue.pop_front();
      queue.oldest_is_new = true;
      if (!selects(*oldest.block)) {
        queue.push_back(oldest);  // once round: the order is kept
        continue;
      }
      ++queue.taken;
      try {
        const Unlocked unlocked(held);
        device_.event_synchronize(oldest.event);
      } catch (...) {
        --queue.taken;
        queue.push_front(oldest);
        throw;
      }
      --queue.taken;
      finish(oldest, held);
    }
    queue.oldest_is_new = !queue.empty();
  }
}

// The events are out of their queues meanwhile, as in synchronize.
bool DeferredFrees::synchronize_next(FunctionRef<bool(const Block&)> selects, Held& held) {
  Vector<std::pair<Queue*, Pending>> oldest;
  std::vector<Event> events;
  oldest.reserve(queues_.size());
  events.reserve(queues_.size());
  for (const auto& queue : queues_) {
    if (!queue->has(selects)) continue;
    oldest.emplace_back(queue.get(), queue->pop_front());
    ++queue->taken;
    events.push_back(oldest.back().second.event);
  }
  if (oldest.empty()) return false;
  std::size_t first = oldest.size();
  const auto put_back = [&] {
    for (std::size_t i = 0; i < oldest.size(); ++i) {
      --oldest[i].first->taken;
      if (i != first) oldest[i].first->push_front(oldest[i].second);
      oldest[i].first->oldest_is_new = !oldest[i].first->empty();
    }
  };
  try {
    const Unlocked unlocked(held);
    first = device_.event_synchronize_any(events);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  finish(oldest[first].second, held);
  return true;
}

bool DeferredFrees::Queue::has(FunctionRef<bool(const Block&)> selects) const {
  for (std::size_t i = 0; i < count_; ++i) {
    if (selects(*ring_[(first_ + i) % ring_.size()].block)) return true;
  }
  return false;
}

void DeferredFrees::Queue::grow_if_full() {
  if (count_ < ring_.size()) return;
  Vector<Pending> larger(std::max<std::size_t>(16, 2 * ring_.size()));
  for (std::size_t i = 0; i < count_; ++i) larger[i] = ring_[(first_ + i) % ring_.size()];
  ring_ = std::move(larger);
  first_ = 0;
}

void DeferredFrees::Queue::push_back(const Pending& pending) {
  grow_if_full();
  ring_[(first_ + count_++) % ring_.size()] = pending;
}

void DeferredFrees::Queue::push_front(const Pending& pending) {
  grow_if_full();
  first_ = (first_ + ring_.size() - 1) % ring_.size();
  ring_[first_] = pending;
  ++count_;
}

DeferredFrees::Pending DeferredFrees::Queue::pop_front() {
  CACHALOT_ASSERT(count_ > 0);
  const Pending pending = ring_[first_];
  first_ = (first_ + 1) % ring_.size();
  --count_;
  return pending;
}

std::size_t DeferredFrees::metadata_bytes() const {
  std::size_t bytes = uses_.size() * sizeof(StreamUse) + events_.capacity() * sizeof(Event);
  for (const auto& queue : queues_) bytes += sizeof(Queue) + queue->capacity() * sizeof(Pending);
  return bytes;
}

PendingFrees::PendingFrees(HeapState& state)
    : state_(state), frees_(*state.device, [this](Block& block, Held& held) {
        holds(held);
        finish_waiting(block, held);
      }) {}

void PendingFrees::add_use(Block& block, const KnownStream& stream, const Held& /*held*/) {
  frees_.add_use(block, stream);
}

void PendingFrees::free(Block& block, const Context& context, Held& held) {
  if (block.uses.head != nullptr) return free_later(block, context, held);
  state_.count_free_requested(block, context, held);
  state_.finish_free(block, context, held);
}

// The block's last uses on other streams must finish first.
void PendingFrees::free_later(Block& block, const Context& context, Held& held) {
  if (state_.capturing(held)) {
    deferred_in_capture_.push_back(&block);
  } else {
    block.size_and_flags |= Block::kFreeing;
    try {
      frees_.wait_for_uses(block, held);
    } catch (const DeviceReset&) {
      block.size_and_flags &= ~std::uint64_t{Block::kFreeing};
      frees_.forget_uses(block);  // destructors must be able to free it
      state_.count_free_requested(block, context, held);
      return state_.finish_free(block, context, held);
    } catch (...) {
      block.size_and_flags &= ~std::uint64_t{Block::kFreeing};
      throw;
    }
  }
  state_.count_free_requested(block, context, held);
  start_waiting(block, held);
}

void PendingFrees::start_waiting(Block& block, const Held& held) {
  block.size_and_flags = block.size() | Block::kPending;
  state_.counters.starts_waiting(block.arena->pool.kind(), as_signed(block.size()));
  state_.set_mode(HeapState::kWaitingFrees, true, held);
}

void PendingFrees::finish_waiting(Block& block, const Held& held) {
  state_.counters.stops_waiting(block.arena->pool.kind(), as_signed(block.size()));
  state_.set_mode(HeapState::kWaitingFrees, !frees_.empty() || !deferred_in_capture_.empty(), held);
  state_.finish_free(block, nullptr, held);
}

void PendingFrees::record_events_of_capture(Held& held) {
  while (!deferred_in_capture_.empty()) {
    Block* block = deferred_in_capture_.back();
    deferred_in_capture_.pop_back();
    try {
      frees_.wait_for_uses(*block, held);
    } catch (...) {
      deferred_in_capture_.push_back(block);
      throw;
    }
  }
}

void PendingFrees::reclaim(Held& held) {
  record_events_of_capture(held);
  frees_.reclaim(held);
}

bool PendingFrees::synchronize(const PrivatePool* only, Held& held) {
  state_.ledger.synchronized(held);
  if (!state_.is(HeapState::kWaitingFrees, held)) return false;
  record_events_of_capture(held);
  frees_.synchronize([only](const Block& block) { return only == nullptr || block.arena->pool.owner() == only; }, held);
  return true;
}

bool PendingFrees::synchronize_next(const PrivatePool* owner, Held& held) {
  if (!state_.is(HeapState::kWaitingFrees, held)) return false;
  record_events_of_capture(held);
  return frees_.synchronize_next([owner](const Block& block) { return block.arena->pool.owner() == owner; }, held);
}

void PendingFrees::end_stream(const KnownStream& stream, Held& held) { frees_.end_stream(stream, held); }
std::size_t PendingFrees::metadata_bytes(const Held& /*held*/) const { return frees_.metadata_bytes(); }

CACHALOT_END
