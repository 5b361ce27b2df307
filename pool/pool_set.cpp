#include "cachalot/pool_set.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <unordered_map>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/locks.h"
#include "base/process.h"
#include "pool_core.h"

CACHALOT_BEGIN

// The pools, and what they hold together.
class PoolSet::State final : public PoolBudget, private ForkAware {
 public:
  State(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, std::size_t byte_budget,
        const TensorPoolOptions& options)
      : owned_(std::move(owned)), allocator_(allocator), budget_(byte_budget), options_(options) {
    CACHALOT_REQUIRE(budget_ > 0, "byte_budget is {}: a set of pools needs room for a tensor", budget_);
    CACHALOT_REQUIRE(options_.initial_slots == 0,
                     "initial_slots is {}: the pools of a set are made empty, when they are first used",
                     options_.initial_slots);
    PoolCore::check(options_);
  }

  void charge(std::size_t bytes, int device) override;
  void refund(std::size_t bytes) noexcept override { held_.fetch_sub(bytes); }

  // Returns the pool of the spec, or null if there is none yet. Counts as a use.
  TensorPool* find(const TensorSpec& spec);
  // Or the one that another thread has made meanwhile.
  TensorPool& add(std::unique_ptr<TensorPool> pool);
  // The least recently used first. They live as long as the set.
  std::vector<TensorPool*> pools() const;
  // The set goes.
  void drop_pools();

  const std::shared_ptr<CachingAllocator>& owned() const { return owned_; }
  CachingAllocator& allocator() const { return allocator_; }
  const TensorPoolOptions& options() const { return options_; }
  std::size_t budget() const { return budget_; }
  std::size_t held() const { return held_.load(); }
  // Returns "" or what is wrong. Requires: no other thread uses the set.
  std::string first_broken_rule() const;
  std::size_t peak() const { return peak_.load(); }

 private:
  struct Entry {
    std::unique_ptr<TensorPool> pool;
    std::uint64_t last_use = 0;
  };
  bool has_room(std::size_t bytes) const { return held_.load() <= budget_ && bytes <= budget_ - held_.load(); }

  const std::shared_ptr<CachingAllocator> owned_;
  CachingAllocator& allocator_;
  const std::size_t budget_;
  const TensorPoolOptions options_;
  std::atomic<std::size_t> held_{0};  // grows with making_room_ held
  std::atomic<std::size_t> peak_{0};
  std::mutex making_room_;  // held across calls of the allocator, by a growing pool
  mutable SpinMutex mutex_;
  std::unordered_map<TensorSpec, Entry> pools_ CACHALOT_GUARDED_BY(mutex_);
  std::uint64_t uses_ CACHALOT_GUARDED_BY(mutex_) = 0;
};

// Charges the bytes. A thread that trims waits for no room: so threads that want room may wait for one that trims.
void PoolSet::State::charge(std::size_t bytes, int device) {
  const std::lock_guard<std::mutex> lock(making_room_);
  if (bytes <= budget_ && !has_room(bytes)) {
    for (TensorPool* pool : pools()) {
      pool->core_->trim(0);
      if (has_room(bytes)) break;
    }
  }
  if (!has_room(bytes)) {
    throw OutOfMemory(formatted("the pools hold {} of their budget of {}, all in use: there is no room for {} more",
                                format_bytes(held_), format_bytes(budget_), format_bytes(bytes)),
                      device, bytes);
  }
  peak_ = std::max(peak_.load(), held_.fetch_add(bytes) + bytes);
}

TensorPool* PoolSet::State::find(const TensorSpec& spec) {
  require_own_process("the set of pools");
  const Lock lock(mutex_);
  const auto found = pools_.find(spec);
  if (found == pools_.end()) return nullptr;
  found->second.last_use = ++uses_;
  return found->second.pool.get();
}

TensorPool& PoolSet::State::add(std::unique_ptr<TensorPool> pool) {
  const Lock lock(mutex_);
  Entry& entry = pools_[pool->spec()];
  if (entry.pool == nullptr) entry.pool = std::move(pool);
  entry.last_use = ++uses_;
  return *entry.pool;
}

std::vector<TensorPool*> PoolSet::State::pools() const {
  require_own_process("the set of pools");
  std::vector<std::pair<std::uint64_t, TensorPool*>> by_use;
  {
    const Lock lock(mutex_);
    for (const auto& [spec, entry] : pools_) by_use.emplace_back(entry.last_use, entry.pool.get());
  }
  std::ranges::sort(by_use);
  std::vector<TensorPool*> pools;
  pools.reserve(by_use.size());
  for (const auto& entry : by_use) pools.push_back(entry.second);
  return pools;
}

void PoolSet::State::drop_pools() {
  if (is_inherited()) return;
  std::unordered_map<TensorSpec, Entry> dropped;
  const Lock lock(mutex_);
  std::swap(dropped, pools_);
}

std::string PoolSet::State::first_broken_rule() const {
  if (held() > budget_) return formatted("{} bytes are held, over the budget of {}", held(), budget_);
  if (peak() < held() || peak() > budget_)
    return formatted("the peak is {} bytes, with {} held and a budget of {}", peak(), held(), budget_);
  std::size_t bytes = 0;
  for (const TensorPool* pool : pools()) {
    if (std::string broken = pool->validate(); !broken.empty()) return to_string(pool->spec()) + ": " + broken;
    bytes += pool->stats().bytes;
  }
  if (bytes != held()) return formatted("{} bytes of the budget are held, and the pools have {}", held(), bytes);
  const Lock lock(mutex_);
  std::set<std::uint64_t> uses;
  for (const auto& [spec, entry] : pools_) {
    if (entry.pool->spec() != spec) return "a pool is found by another's spec";
    if (entry.last_use > uses_ || !uses.insert(entry.last_use).second) return "two pools were used last at once";
  }
  return "";
}

// --- PoolSet ---------------------------------------------------------------------------------------------------------

PoolSet::PoolSet(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, std::size_t byte_budget,
                 const TensorPoolOptions& options)
    : state_(std::make_shared<State>(std::move(owned), allocator, byte_budget, options)) {}

// By value: a caller that moves its allocator here gives it up.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
PoolSet::PoolSet(std::shared_ptr<CachingAllocator> allocator, std::size_t byte_budget, const TensorPoolOptions& options)
    : PoolSet(allocator, not_null(allocator), byte_budget, options) {}

PoolSet::PoolSet(CachingAllocator& allocator, std::size_t byte_budget, const TensorPoolOptions& options)
    : PoolSet(nullptr, allocator, byte_budget, options) {}

PoolSet::~PoolSet() { state_->drop_pools(); }

TensorPool& PoolSet::pool_of(const TensorSpec& spec) {
  if (TensorPool* pool = state_->find(spec)) return *pool;
  return state_->add(std::unique_ptr<TensorPool>(
      new TensorPool(state_->owned(), state_->allocator(), spec, state_->options(), state_)));
}

PooledTensor PoolSet::acquire(const TensorSpec& spec, Stream stream) { return pool_of(spec).acquire(stream); }

std::optional<PooledTensor> PoolSet::try_acquire(const TensorSpec& spec, Stream stream) {
  return pool_of(spec).try_acquire(stream);
}

void PoolSet::stream_ends(Stream stream) {
  for (TensorPool* pool : state_->pools()) pool->stream_ends(stream);
}

std::size_t PoolSet::trim() {
  std::size_t bytes = 0;
  for (TensorPool* pool : state_->pools()) bytes += pool->trim();
  return bytes;
}

std::size_t PoolSet::byte_budget() const { return state_->budget(); }
std::size_t PoolSet::bytes() const { return state_->held(); }

PoolStats PoolSet::stats() const {
  PoolStats all;
  for (const auto& [spec, one] : stats_by_spec()) {
    all.acquires += one.acquires;
    all.hits += one.hits;
    all.allocations += one.allocations;
    all.host_waits += one.host_waits;
    all.stream_waits += one.stream_waits;
    all.live += one.live;
    all.peak_live += one.peak_live;
    all.slots += one.slots;
    all.bytes += one.bytes;
  }
  all.peak_bytes = state_->peak();
  return all;
}

PoolStats PoolSet::stats(const TensorSpec& spec) const {
  for (const TensorPool* pool : state_->pools()) {
    if (pool->spec() == spec) return pool->stats();
  }
  return {};
}

std::vector<std::pair<TensorSpec, PoolStats>> PoolSet::stats_by_spec() const {
  std::vector<std::pair<TensorSpec, PoolStats>> by_spec;
  for (const TensorPool* pool : state_->pools()) by_spec.emplace_back(pool->spec(), pool->stats());
  return by_spec;
}

std::string PoolSet::validate() const { return state_->first_broken_rule(); }

CACHALOT_END
