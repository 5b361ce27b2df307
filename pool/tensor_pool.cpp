#include "cachalot/tensor_pool.h"

#include "base/check.h"
#include "pool_core.h"

namespace cachalot {

namespace {

// A timeout beyond this is as good as none, and could not be added to the clock.
constexpr std::chrono::nanoseconds kLongestWait = std::chrono::hours(24 * 365);

}  // namespace

// --- PooledTensor ----------------------------------------------------------------------------------------------------

void PooledTensor::require_held(const char* call) const {
  CACHALOT_REQUIRE(pool_ != nullptr, "{} of a tensor that is empty: it was returned to its pool already, or moved from",
                   call);
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

void PooledTensor::release() {
  require_held("release");
  give_back();
}

void* PooledTensor::fixed_data() {
  if (entry_ != nullptr) *std::exchange(entry_, nullptr) = nullptr;
  return data();
}

void PooledTensor::give_back() noexcept {
  if (entry_ != nullptr) *std::exchange(entry_, nullptr) = nullptr;
  PoolCore& pool = *std::exchange(pool_, nullptr);
  if (!pool.try_release(*slot_)) [[unlikely]]
    pool.release(*slot_);
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

PooledTensor TensorPool::acquire(Stream stream) {
  PoolSlot* slot = core_->try_acquire(StreamKey::of_handle(stream));
  if (slot == nullptr) [[unlikely]] {
    const bool waits = core_->options().when_empty == WhenEmpty::wait;
    slot = core_->acquire(stream, waits ? PoolCore::IfNone::wait : PoolCore::IfNone::fail);
    if (slot == nullptr) core_->throw_empty();
  }
  return wrap(*slot, stream);
}

PooledTensor TensorPool::wrap(PoolSlot& slot, Stream stream) {
  return {*core_, slot, slot.data, stream, core_->entry_of(slot)};
}

std::optional<PooledTensor> TensorPool::wrap(PoolSlot* slot, Stream stream) {
  if (slot == nullptr) return std::nullopt;
  return wrap(*slot, stream);
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
  return core_->moves_tensors() ? core_->compact(keep).bytes_freed : core_->trim(keep);
}

CompactReport TensorPool::compact(std::size_t keep) {
  core_->require_allocator();
  CACHALOT_REQUIRE(core_->moves_tensors(), "compact of the pool of {}: its tensors cannot be moved without a mover",
                   to_string(spec()));
  return core_->compact(keep);
}

const TensorSpec& TensorPool::spec() const { return core_->spec(); }
const TensorPoolOptions& TensorPool::options() const { return core_->options(); }

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

}  // namespace cachalot
