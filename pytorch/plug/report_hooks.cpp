// Reports on the process's allocator, for ctypes: the answers for cachalot.memory_report, and the page of published statistics. Texts:
// hooks.h. Thread-safe.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/json_writer.h"
#include "c_api/last_error.h"
#include "diagnostics/process_publisher.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/process_allocator.h"

namespace cachalot {
namespace {

struct PoolMemory {
  std::string tag;
  std::size_t live = 0;
  std::size_t waiting = 0;
  std::size_t cached = 0;
  std::size_t asleep = 0;
};

// By device and pool.
using PoolMemories = std::map<std::tuple<int, std::uint64_t, std::uint64_t>, PoolMemory>;

// Blocks of memory that sleeps hold nothing: held bytes are live first, then waiting, then cached.
void add(PoolMemory& pool, const SegmentSnapshot& segment) {
  const std::size_t held = segment.total_size - segment.asleep_size;
  const std::size_t live = std::min(segment.allocated_size, held);
  const std::size_t active = std::clamp(segment.active_size, live, held);
  pool.live += live;
  pool.waiting += active - live;
  pool.cached += held - active;
  pool.asleep += segment.asleep_size;
}

PoolMemories pool_memories(CachingAllocator& allocator) {
  PoolMemories pools;
  for (const SegmentSnapshot& segment : allocator.snapshot({}, /*include_traces=*/false).segments)
    add(pools[{segment.device, segment.segment_pool_id.first, segment.segment_pool_id.second}], segment);
  for (const TagMemory& memory : allocator.tags()) {
    const auto found = pools.find({memory.device, memory.pool.first, memory.pool.second});
    if (found != pools.end()) found->second.tag = memory.tag;
  }
  return pools;
}

std::string pool_memory_json() {
  JsonWriter json;
  CachingAllocator* const allocator = Process::made();
  json.list(allocator != nullptr ? pool_memories(*allocator) : PoolMemories(),
            [](JsonWriter& out, const PoolMemories::value_type& entry) {
              const auto& [device, first, second] = entry.first;
              out.begin_object()
                  .member("device", device)
                  .member("first", first)
                  .member("second", second)
                  .member("tag", entry.second.tag)
                  .member("live", entry.second.live)
                  .member("waiting", entry.second.waiting)
                  .member("cached", entry.second.cached)
                  .member("asleep", entry.second.asleep)
                  .end_object();
            });
  return json.take();
}

std::string published_json() {
  JsonWriter json;
  json.begin_object().member("path", published_page()).end_object();
  return json.take();
}

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

// JSON of a list with an object for each pool of each device: "device", "first" and "second" (the pool's id), "tag" (empty without
// one), and in bytes its memory of the device: "live", "waiting" (freed, and other streams may still use it) and "cached"; and
// "asleep", which it does not hold until restore_physical. An empty list if no memory was used: the allocator is then not made, and
// the device not touched. Thread-safe.
CACHALOT_EXPORT char* cachalot_plug_pool_memory_json() { return text_or_null(pool_memory_json); }

// {"path": of the page, or "" if nothing is published}.
CACHALOT_EXPORT char* cachalot_plug_published_json() { return text_or_null(published_json); }
}
