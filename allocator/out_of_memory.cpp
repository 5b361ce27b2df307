// Running out of memory: who is told, and a message that says what the user needs next.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device_allocator.h"
#include "policy/torch_policy.h"

namespace cachalot {

void DeviceAllocator::add_out_of_memory_observer(OutOfMemoryObserver observer) {
  CACHALOT_REQUIRE(observer, "an out-of-memory observer must be callable");
  const Lock lock(mutex_);
  out_of_memory_observers_.push_back(std::move(observer));
}

void DeviceAllocator::add_free_memory_callback(FreeMemoryCallback callback) {
  CACHALOT_REQUIRE(callback, "a free-memory callback must be callable");
  const Lock lock(mutex_);
  free_memory_callbacks_.push_back(std::move(callback));
}

void DeviceAllocator::throw_out_of_memory(Request request, const Context& context) {
  const std::size_t bytes = segment_size(request.rounded, options_.large_segment_size);
  MemoryInfo memory;
  {
    const Unlocked unlocked(mutex_);
    memory = device_->memory_info();
  }
  gather_all();
  ++counters_.num_ooms;
  if ((rare_ & kObserved) != 0) {
    observe({.action = Change::Action::oom,
             .pool_kind = request.pool().kind(),
             .address = memory.free_bytes,
             .bytes = bytes,
             .stream = request.stream().handle,
             .pool = request.pool().id(),
             .context = context});
  }
  const std::string message = explain(request, bytes, memory);
  const OutOfMemoryReport report{index_, bytes, limit_ == kNoLimit ? memory.total_bytes : limit_, memory.free_bytes};
  const std::vector<OutOfMemoryObserver> observers = out_of_memory_observers_;
  {
    const Unlocked unlocked(mutex_);
    for (const OutOfMemoryObserver& observer : observers) observer(report);
  }
  throw OutOfMemory(message, index_, request.bytes);
}

// The first sentences are PyTorch's, so that what reads its messages reads these.
std::string DeviceAllocator::explain(Request request, std::size_t segment_bytes, const MemoryInfo& memory) const {
  std::string text =
      formatted("CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
                format_bytes(segment_bytes), index_, format_bytes(memory.total_bytes), format_bytes(memory.free_bytes));
  if (limit_ != kNoLimit) text += formatted("{} allowed; ", format_bytes(limit_));
  return text + explain_use(request);
}

namespace {

struct FreeBlocks {
  std::size_t bytes = 0;
  std::size_t largest = 0;
  std::size_t in_split_segments = 0;
};

void add_free_blocks(const Arena& arena, FreeBlocks& blocks) {
  arena.bins.for_each([&](const Block& block) {
    blocks.bytes += block.size();
    blocks.largest = std::max(blocks.largest, block.size());
    if (block.is_split()) blocks.in_split_segments += block.size();
  });
}

}  // namespace

// Where the memory is, and why none of what is cached could serve. Amounts of 0 are left out.
std::string DeviceAllocator::explain_use(Request request) const {
  std::string text =
      formatted("The request was for {}{}.", format_bytes(request.bytes), request.contiguous ? " in one handle" : "");
  text += explain_held() + explain_sleep() + explain_free(request);
  if (const std::int64_t waiting = counters_.waiting_bytes(); waiting != 0) {
    text += formatted(" {} waits for work on other streams.", format_bytes(as_size(waiting)));
  }
  return text;
}

std::string DeviceAllocator::explain_held() const {
  const std::size_t allocated = as_size(counters_.allocated_bytes());
  const std::size_t requested = as_size(counters_.requested_bytes());
  const std::size_t reserved = as_size(counters_.reserved_bytes());
  if (allocated == 0 && reserved == 0) return " This allocator holds no memory of the device.";
  if (allocated == 0) return formatted(" {} is reserved, and none of it is allocated.", format_bytes(reserved));
  const std::string of_which =
      requested != allocated ? formatted(" (of which {} was requested)", format_bytes(requested)) : "";
  return formatted(" {} is allocated{} and {} is reserved.", format_bytes(allocated), of_which,
                   reserved != 0 ? format_bytes(reserved) : "nothing");
}

// What sleeps is allocated, but neither reserved nor free.
std::string DeviceAllocator::explain_sleep() const {
  std::size_t bytes = 0;
  std::string names;
  for (const auto& [id, pool] : pools_) {
    if (!pool->is_asleep) continue;
    bytes += bytes_of(handles_of(*pool, /*asleep=*/true));
    names += (names.empty() ? "" : ", ") + name_of(*pool);
  }
  if (bytes == 0) return "";
  return formatted(" {} is asleep ({}): it has no memory until restore_physical.", format_bytes(bytes), names);
}

std::string DeviceAllocator::explain_free(Request request) const {
  FreeBlocks all, here, in_private_pools;
  for_each_pool([&](const BlockPool& pool) {
    if (is_asleep(pool)) return;
    for (const auto& arena : pool.arenas()) {
      add_free_blocks(*arena, all);
      if (arena.get() == request.arena) add_free_blocks(*arena, here);
      if (pool.owner() != nullptr) add_free_blocks(*arena, in_private_pools);
    }
  });
  if (all.bytes == 0) return counters_.reserved_bytes() == 0 ? "" : " No reserved memory is free.";
  std::string text = formatted(" {} is reserved but unallocated", format_bytes(all.bytes));
  if (in_private_pools.bytes != 0)
    text += formatted(" ({} of it in private pools)", format_bytes(in_private_pools.bytes));
  text += here.largest == 0
              ? ". This stream could use no free block"
              : formatted(". The largest free block this stream could use is {}", format_bytes(here.largest));
  if (all.largest > here.largest) text += formatted(", the largest of all is {}", format_bytes(all.largest));
  if (all.in_split_segments != 0)
    text += formatted("; {} is free in segments that are partly in use", format_bytes(all.in_split_segments));
  return text + ".";
}

}  // namespace cachalot
