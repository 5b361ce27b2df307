#include "heap/ledger.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "heap/heap_state.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

// --- asking the device --------------------------------------------------------------------------------------------------

std::optional<Ledger::Ask> Ledger::ask(std::size_t bytes, const Held& held) {
  if (is_beyond_limit(bytes, held)) return std::nullopt;
  if (refuses(bytes, held)) return std::nullopt;
  held_ += bytes;
  asked_ += bytes;
  return Ask(*this, bytes);
}

// Returns whether new bytes would exceed the limit. If more is held than a limit allows, since it was set later,
// requests that need no new memory go on.
bool Ledger::is_beyond_limit(std::size_t bytes, const Held& held) const {
  const std::size_t most = limit(held);
  return bytes != 0 && most != HeldLimit::kNone && (held_ > most || bytes > most - held_);
}

// PyTorch's rule: by the option's fraction, whatever was set since.
bool Ledger::refuses(std::size_t bytes, const Held& held) const {
  if (!state_.options.throw_on_cudamalloc_oom || bytes == 0) return false;
  if (is_beyond_limit(bytes, held)) return false;
  const auto total = static_cast<double>(state_.device->properties().total_bytes);
  return held_ + bytes > static_cast<std::size_t>(state_.options.per_process_memory_fraction * total);
}

void Ledger::Ask::granted(std::size_t bytes, const Held& held) {
  holds(held);
  bytes_ -= bytes;
  ledger_.asked_ -= bytes;
  if (!ledger_.is_below_soft_ || ledger_.held_ - ledger_.asked_ <= ledger_.soft_limit_) return;
  ledger_.is_below_soft_ = false;
  ledger_.crossed_by_ = std::this_thread::get_id();
}

void Ledger::Ask::withdrawn(std::size_t bytes, const Held& held) {
  holds(held);
  bytes_ -= bytes;
  ledger_.asked_ -= bytes;
  ledger_.held_ -= bytes;
}

// Its scope is inside that of the lock.
Ledger::Ask::~Ask() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  ledger_.asked_ -= bytes_;
  ledger_.held_ -= bytes_;
}

void Ledger::hold_less(std::size_t bytes) {
  held_ -= bytes;
  const std::size_t there = held_ - asked_;
  if (there <= soft_limit_) is_below_soft_ = true;
  kept_ = std::min(kept_, there);
}

Ledger::Move::Move(Ledger& ledger, std::size_t bytes, const Held& held) : ledger_(ledger), bytes_(bytes) {
  holds(held);
  ledger_.moving_ += bytes_;
}
Ledger::Move::~Move() CACHALOT_NO_THREAD_SAFETY_ANALYSIS { ledger_.moving_ -= bytes_; }

// --- segments -----------------------------------------------------------------------------------------------------------

void Ledger::segment_came(const Block& block, const Context& context, const Held& held) {
  const std::size_t bytes = block.size();
  const BlockPool& pool = block.arena->pool;
  state_.counters.segment_allocated(pool.kind(), as_signed(bytes));
  state_.pool_reserves.came(pool.id(), pool.kind(), as_signed(bytes));
  if (is_oversize(bytes, state_.options)) state_.counters.oversize_segment(1);
  state_.observers.observe(Observers::change_of(Change::Action::segment_alloc, block, context), held);
}

void Ledger::segment_departs(const Departing& segment, const Held& /*held*/) {
  departing_ += segment.bytes;
  const BlockPool& pool = segment.arena->pool;
  state_.counters.segment_freed(pool.kind(), as_signed(segment.bytes));
  state_.pool_reserves.went(pool.id(), pool.kind(), as_signed(segment.bytes));
}

void Ledger::segment_stays(const Departing& segment, const Held& /*held*/) {
  departing_ -= segment.bytes;
  const BlockPool& pool = segment.arena->pool;
  state_.counters.segment_kept(pool.kind(), as_signed(segment.bytes));
  state_.pool_reserves.went(pool.id(), pool.kind(), -as_signed(segment.bytes));  // as if it had not gone
}

void Ledger::segment_goes(const Departing& segment, const Held& held) {
  tell_of_pages(Change::Action::segment_free, segment.arena->pool.kind(), segment.address, segment.bytes,
                *segment.arena, segment.context, held);
}

void Ledger::segment_was_refused(const Departing& segment, const Held& held) {
  tell_of_pages(Change::Action::segment_alloc, segment.arena->pool.kind(), segment.address, segment.bytes,
                *segment.arena, segment.context, held);
}

void Ledger::segment_went(const Departing& segment, const Held& /*held*/) {
  departing_ -= segment.bytes;
  hold_less(segment.bytes);
  ++state_.counters.events.device_free;
  if (is_oversize(segment.bytes, state_.options)) state_.counters.oversize_segment(-1);
}

// --- pages --------------------------------------------------------------------------------------------------------------

void Ledger::pages_came(const Home& home, std::size_t bytes, const Held& /*held*/) {
  state_.counters.pages_mapped(home.kind, as_signed(bytes));
  state_.pool_reserves.came(home.pool, home.kind, as_signed(bytes));
}

void Ledger::pages_moved(const Home& from, const Home& to, std::size_t bytes, const Held& /*held*/) {
  state_.counters.pages_moved(from.kind, to.kind, as_signed(bytes));
  if (from.pool == to.pool && from.kind == to.kind) return;
  state_.pool_reserves.went(from.pool, from.kind, as_signed(bytes));
  state_.pool_reserves.came(to.pool, to.kind, as_signed(bytes));
}

void Ledger::pages_went(PoolKind kind, Address address, std::size_t bytes, const Arena& arena, const Held& held) {
  state_.counters.pages_unmapped(kind, as_signed(bytes));
  state_.pool_reserves.went(arena.pool.id(), kind, as_signed(bytes));
  tell_of_pages(Change::Action::segment_unmap, kind, address, bytes, arena, nullptr, held);
}

void Ledger::handle_departs(std::size_t bytes, const Held& /*held*/) {
  ++state_.counters.events.device_free;
  orphaned_ += bytes;
}

void Ledger::orphaned(std::size_t bytes, const Held& /*held*/) {
  held_ += bytes;
  orphaned_ += bytes;
}

void Ledger::orphan_went(std::size_t bytes, const Held& /*held*/) {
  hold_less(bytes);
  orphaned_ -= bytes;
}

void Ledger::tell_of_pages(Change::Action action, PoolKind kind, Address address, std::size_t bytes, const Arena& arena,
                           const Context& context, const Held& held) {
  state_.observers.observe({.action = action,
                            .pool_kind = kind,
                            .address = address,
                            .bytes = bytes,
                            .stream = arena.stream.handle,
                            .pool = arena.pool.id(),
                            .context = context},
                           held);
}

// --- requests -----------------------------------------------------------------------------------------------------------

void Ledger::retried(PoolKind kind, const Held& held) {
  ++state_.counters.events.alloc_retries;
  state_.observers.observe({.action = Change::Action::retry, .pool_kind = kind}, held);
}

void Ledger::ran_out(Change change, const Held& held) {
  ++state_.counters.events.ooms;
  change.action = Change::Action::oom;
  state_.observers.observe(std::move(change), held);
}

void Ledger::refused(const Held& /*held*/) { ++state_.counters.events.oom_rejections; }

void Ledger::synchronized(const Held& held) {
  ++state_.counters.events.sync_all_streams;
  state_.observers.observe({.action = Change::Action::synchronize}, held);
}

// --- the limits ---------------------------------------------------------------------------------------------------------

void HeldLimit::require_fraction(double fraction) {
  CACHALOT_REQUIRE(fraction >= 0 && fraction <= 1, "invalid fraction: {}. Please set within [0, 1].", fraction);
}

void HeldLimit::set_fraction(double fraction, std::size_t device_bytes) {
  fraction_ = fraction;
  fraction_bytes_ = fraction == 1 ? kNone : static_cast<std::size_t>(fraction * static_cast<double>(device_bytes));
}

void Ledger::set_soft_limit(std::size_t bytes, const Held& /*held*/) {
  soft_limit_ = bytes;
  is_below_soft_ = true;
  crossed_by_ = {};
}

std::size_t Ledger::soft_limit(const Held& /*held*/) const { return soft_limit_; }

bool Ledger::take_crossing(const Held& /*held*/) {
  if (crossed_by_ != std::this_thread::get_id()) return false;
  crossed_by_ = {};
  return true;
}

void Ledger::keep(std::size_t bytes, const Held& /*held*/) { kept_ = bytes; }
std::size_t Ledger::kept_bytes(const Held& /*held*/) const { return kept_; }

std::size_t Ledger::held_bytes(const Held& /*held*/) const { return held_; }
std::size_t Ledger::moving_bytes(const Held& /*held*/) const { return moving_; }

std::string Ledger::validate(const Held& /*held*/) const {
  const std::size_t reserved = as_size(state_.counters.reserved_bytes());
  return held_ == reserved + asked_ + departing_ + orphaned_ ? "" : "held bytes differ from statistic 'reserved_bytes'";
}

CACHALOT_END
