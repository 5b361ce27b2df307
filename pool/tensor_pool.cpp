#include "cachalot/tensor_pool.h"

#include "base/check.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "pool_core.h"

CACHALOT_BEGIN

namespace {

// A timeout beyond this is as good as none, and could not be added to the clock.
constexpr std::chrono::nanoseconds kLongestWait = std::chrono::hours(24 * 365);

}  // namespace

// --- PooledTensor ----------------------------------------------------------------------------------------------------

inline void PooledTensor::require_held(const char* call) const {
  if (pool_ == nullptr) [[unlikely]]
    throw_empty(call);
}

void PooledTensor::throw_empty(const char* call) {
  throw InvalidArgument(
      formatted("{} of a tensor that is empty: it was returned to its pool already, or moved from", call));
}

const TensorSpec& PooledTensor::spec() const {
  require_held("spec");
  return pool_->spec();
}

std::size_t PooledTensor::bytes() const {
  require_held("bytes");
  return pool_->tensor_bytes();
}

void PooledTensor::record_stream(Stream other) {
  require_held("record_stream");
  pool_->record_stream(*slot_, other);
}

void PooledTensor::share_with(Stream other) {
  require_held("share_with");
  pool_->share(*slot_, other);
}

void PooledTensor::return_slot(PoolCore& pool, PoolSlot& slot) noexcept {
  if (!pool.try_release(slot)) [[unlikely]]
    pool.release(slot);
}

// --- TensorPool ------------------------------------------------------------------------------------------------------

// By value: a caller that moves its allocator here gives it up.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
TensorPool::TensorPool(std::shared_ptr<CachingAllocator> allocator, const TensorSpec& spec,
                       const TensorPoolOptions& options)
    : TensorPool(allocator, not_null(allocator), spec, options, nullptr) {}

TensorPool::TensorPool(CachingAllocator& allocator, const TensorSpec& spec, const TensorPoolOptions& options)
    : TensorPool(nullptr, allocator, spec, options, nullptr) {}

TensorPool::TensorPool(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, const TensorSpec& spec,
                       const TensorPoolOptions& options, std::shared_ptr<PoolBudget> budget)
    : core_(new PoolCore(spec, options, std::move(owned), allocator, std::move(budget))) {
  try {
    core_->make_initial_slots();
  } catch (...) {
    core_->close();
    throw;
  }
}

TensorPool::~TensorPool() { core_->close(); }

TensorPool::Taken TensorPool::take(Stream stream) {
  PoolSlot* const slot = core_->try_acquire(StreamKey::of_handle(stream));
  if (slot == nullptr) [[unlikely]]
    return take_slowly(stream);
  return {slot, slot->data};
}

// A function of its own, so that the usual case saves no registers.
[[gnu::noinline]] TensorPool::Taken TensorPool::take_slowly(Stream stream) {
  const bool waits = core_->options().when_empty == WhenEmpty::wait;
  PoolSlot* const slot = core_->acquire(stream, waits ? PoolCore::IfNone::wait : PoolCore::IfNone::fail);
  if (slot == nullptr) core_->throw_empty();
  return {slot, slot->data};
}

std::optional<PooledTensor> TensorPool::wrap(PoolSlot* slot, Stream stream) {
  if (slot == nullptr) return std::nullopt;
  return PooledTensor(*core_, slot, slot->data, stream);
}

void TensorPool::stream_ends(Stream stream) { core_->stream_ends(stream); }

std::optional<PooledTensor> TensorPool::try_acquire(Stream stream) {
  PoolSlot* const slot = core_->try_acquire(StreamKey::of_handle(stream));
  return wrap(slot != nullptr ? slot : core_->acquire(stream, PoolCore::IfNone::fail), stream);
}

std::optional<PooledTensor> TensorPool::acquire_for(std::chrono::nanoseconds timeout, Stream stream) {
  if (PoolSlot* slot = core_->try_acquire(StreamKey::of_handle(stream))) return wrap(slot, stream);
  PoolCore::Deadline deadline;
  if (timeout < kLongestWait) deadline = std::chrono::steady_clock::now() + timeout;
  return wrap(core_->acquire(stream, PoolCore::IfNone::wait, deadline), stream);
}

std::size_t TensorPool::trim(std::size_t keep) {
  core_->require_allocator();
  return core_->trim(keep);
}

const TensorSpec& TensorPool::spec() const { return core_->spec(); }
const TensorPoolOptions& TensorPool::options() const { return core_->options(); }

// Every member: the binding does not compile when one is missing here.
std::string to_json(const PoolStats& stats) {
  const auto& [acquires, hits, allocations, host_waits, stream_waits, live, peak_live, slots, bytes, peak_bytes] =
      stats;
  JsonWriter json;
  json.begin_object().member("acquires", acquires).member("hits", hits).member("allocations", allocations);
  json.member("host_waits", host_waits).member("stream_waits", stream_waits);
  json.member("live", live).member("peak_live", peak_live).member("slots", slots);
  json.member("bytes", bytes).member("peak_bytes", peak_bytes);
  return json.end_object().take();
}

PoolStats TensorPool::stats() const {
  core_->require_own_process();
  return core_->stats();
}

std::string TensorPool::validate() const {
  core_->require_own_process();
  return core_->validate();
}

std::size_t TensorPool::metadata_bytes() const {
  core_->require_own_process();
  return core_->metadata_bytes();
}

CACHALOT_END
