#include "heap/pending_frees.h"

#include "base/bytes.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

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

void PendingFrees::end_stream(const KnownStream& stream, Held& held) { frees_.end_stream(stream, held); }
std::size_t PendingFrees::metadata_bytes(const Held& /*held*/) const { return frees_.metadata_bytes(); }

CACHALOT_END
