#include <array>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "inspection/inspection.h"

CACHALOT_BEGIN

namespace {

// The statistics that a walk over the blocks finds.
class Walk {
 public:
  explicit Walk(const HeapState& state) : state_(state) {}

  DeviceStats stats(const Held& held) {
    holds(held);
    for (const auto& [address, head] : state_.blocks.segments()) {
      add_run(*head, held);
    }
    return found_;
  }

 private:
  static void add(PoolKind kind, StatArray& stat, std::size_t amount) {
    (kind == PoolKind::small ? stat.small_pool : stat.large_pool).current += as_signed(amount);
    stat.all.current += as_signed(amount);
  }

  void add_run(const Block& head, const Held& held) {
    holds(held);
    const Growth& growth = *head.arena->pool.growth;
    const PoolKind reserved_in = growth.reserved_in(head, held);
    if (!growth.is_expandable()) add(reserved_in, found_.segment, 1);
    std::size_t bytes = 0;
    for (const Block* block = &head; !block->is_edge(); block = block->next) {
      bytes += block->size();
      add_block(*block, held);
    }
    const bool sleeps = is_asleep(head.arena->pool);
    const std::size_t asleep = sleeps ? growth.asleep_bytes(head.address, head.address + bytes, held) : 0;
    add(reserved_in, found_.reserved_bytes, bytes - asleep);
  }

  void add_block(const Block& block, const Held& held) {
    holds(held);
    const PoolKind kind = block.arena->pool.kind();
    if (block.is_live()) {
      add(kind, found_.allocation, 1);
      add(kind, found_.allocated_bytes, block.size());
    }
    if (!block.is_unused() && !block.is_cached()) {
      add(kind, found_.active, 1);
      add(kind, found_.active_bytes, block.size());
      add(kind, found_.requested_bytes, block.requested_bytes());
    } else if (block.is_free() && block.is_split() && !state_.blocks.has_ranges()) {
      add(kind, found_.inactive_split, 1);
      add(kind, found_.inactive_split_bytes, block.size());
    }
  }

  const HeapState& state_;
  DeviceStats found_;
};

bool differs(const StatArray& a, const StatArray& b) {
  return a.all.current != b.all.current || a.small_pool.current != b.small_pool.current ||
         a.large_pool.current != b.large_pool.current;
}

}  // namespace

std::string Inspection::validate() {
  const DeviceLock lock(state_.mutex);
  const ThreadCaches::Recall hold(state_.caches.get());
  if (state_.caches != nullptr) {
    parts_.caches.gather_recalled(lock);
    if (std::string broken = validate_caches(lock); !broken.empty()) return broken;
  }
  if (std::string broken = state_.blocks.validate(); !broken.empty()) return broken;
  for (const Growth* growth : parts_.growths) {
    if (std::string broken = growth->validate(lock); !broken.empty()) return broken;
  }
  if (std::string broken = validate_bins(lock); !broken.empty()) return broken;
  if (std::string broken = parts_.sleeping.validate(lock); !broken.empty()) return broken;
  if (std::string broken = validate_counters(lock); !broken.empty()) return broken;
  return state_.ledger.validate(lock);
}

// Every free block is in the bins of its arena, and nothing else is.
std::string Inspection::validate_bins(const Held& held) const {
  std::string broken;
  std::size_t binned = 0;
  parts_.pools.for_each(
      [&](const BlockPool& pool) {
        for (const auto& arena : pool.arenas()) {
          if (std::string wrong = arena->bins.validate(); !wrong.empty()) broken = wrong;
          arena->bins.for_each([&](const Block& block) {
            ++binned;
            if (block.arena != arena.get()) broken = formatted("block {:#x} is in another arena's bins", block.address);
          });
        }
      },
      held);
  std::size_t free = 0;
  for (const auto& [address, head] : state_.blocks.segments()) {
    for (const Block* block = head; !block->is_edge(); block = block->next) free += block->is_free() ? 1 : 0;
  }
  if (broken.empty() && binned != free) broken = formatted("{} blocks are free but {} are in bins", free, binned);
  return broken;
}

// What is marked as cached and not handed out is in a cache, and nothing else is.
std::string Inspection::validate_caches(const Held& /*held*/) const {
  std::size_t idle = 0;
  for (const auto& [address, head] : state_.blocks.segments()) {
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      idle += block->is_cached() ? 1 : 0;
    }
  }
  return state_.caches->validate(idle);
}

// The counters say what a walk over the blocks finds. Bytes on the way from one hole to another are in no block.
std::string Inspection::validate_counters(const Held& held) const {
  const DeviceStats walked = Walk(state_).stats(held);
  const DeviceStats kept = state_.counters.stats();
  const std::array<std::pair<const char*, StatArray DeviceStats::*>, 9> statistics = {{
      {"segment", &DeviceStats::segment},
      {"reserved_bytes", &DeviceStats::reserved_bytes},
      {"allocation", &DeviceStats::allocation},
      {"allocated_bytes", &DeviceStats::allocated_bytes},
      {"active", &DeviceStats::active},
      {"active_bytes", &DeviceStats::active_bytes},
      {"requested_bytes", &DeviceStats::requested_bytes},
      {"inactive_split", &DeviceStats::inactive_split},
      {"inactive_split_bytes", &DeviceStats::inactive_split_bytes},
  }};
  const bool moves = state_.ledger.moving_bytes(held) != 0;
  for (const auto& [name, statistic] : statistics) {
    if (moves && statistic == &DeviceStats::reserved_bytes) continue;
    if (differs(walked.*statistic, kept.*statistic))
      return formatted("statistic '{}' differs from the blocks there are", name);
  }
  return "";
}

std::size_t Inspection::metadata_bytes(std::size_t allocator_bytes) const {
  const DeviceLock lock(state_.mutex);
  std::size_t bytes = allocator_bytes + state_.blocks.metadata_bytes() + parts_.frees.metadata_bytes(lock) +
                      state_.observers.metadata_bytes(lock);
  for (const Growth* growth : parts_.growths) bytes += growth->metadata_bytes(lock);
  if (state_.caches != nullptr) bytes += state_.caches->metadata_bytes();
  parts_.pools.for_each(
      [&](const BlockPool& pool) {
        for (const auto& arena : pool.arenas()) bytes += sizeof(Arena) + arena->bins.metadata_bytes();
      },
      lock);
  return bytes;
}

CACHALOT_END
