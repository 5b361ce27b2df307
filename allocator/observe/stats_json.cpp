#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "base/json_writer.h"
#include "cachalot/stats.h"

CACHALOT_BEGIN
namespace {

// Keys in alphabetical order, as torch.cuda.memory_stats sorts them.
using SortedStats = std::map<std::string, std::int64_t>;

void add(SortedStats& values, const std::string& name, const Stat& stat) {
  values[name + ".current"] = stat.current;
  values[name + ".peak"] = stat.peak;
  values[name + ".allocated"] = stat.allocated;
  values[name + ".freed"] = stat.freed;
}

void add(SortedStats& values, const std::string& name, const StatArray& stats) {
  add(values, name + ".all", stats.all);
  add(values, name + ".small_pool", stats.small_pool);
  add(values, name + ".large_pool", stats.large_pool);
}

// Every member: the bindings do not compile when one is missing here.
auto members_of(const DeviceStats& stats) {
  const auto& [allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes, active_bytes,
               inactive_split_bytes, requested_bytes, oversize_allocations, oversize_segments, num_alloc_retries,
               num_ooms, num_sync_all_streams, num_device_alloc, num_device_free, max_split_size] = stats;
  return std::tie(allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes, active_bytes,
                  inactive_split_bytes, requested_bytes, oversize_allocations, oversize_segments, num_alloc_retries,
                  num_ooms, num_sync_all_streams, num_device_alloc, num_device_free, max_split_size);
}

}  // namespace

bool operator==(const DeviceStats& a, const DeviceStats& b) { return members_of(a) == members_of(b); }

std::string to_json(const DeviceStats& stats) {
  SortedStats values;
  add(values, "allocation", stats.allocation);
  add(values, "segment", stats.segment);
  add(values, "active", stats.active);
  add(values, "inactive_split", stats.inactive_split);
  add(values, "allocated_bytes", stats.allocated_bytes);
  add(values, "reserved_bytes", stats.reserved_bytes);
  add(values, "active_bytes", stats.active_bytes);
  add(values, "inactive_split_bytes", stats.inactive_split_bytes);
  add(values, "requested_bytes", stats.requested_bytes);
  add(values, "oversize_allocations", stats.oversize_allocations);
  add(values, "oversize_segments", stats.oversize_segments);
  values["num_alloc_retries"] = stats.num_alloc_retries;
  values["num_ooms"] = stats.num_ooms;
  values["num_sync_all_streams"] = stats.num_sync_all_streams;
  values["num_device_alloc"] = stats.num_device_alloc;
  values["num_device_free"] = stats.num_device_free;
  values["max_split_size"] = stats.max_split_size;
  JsonWriter json;
  json.begin_object();
  for (const auto& [name, value] : values) json.member(name, value);
  return json.end_object().take();
}

std::string to_json(const Fragmentation& fragmentation) {
  JsonWriter json;
  json.begin_object()
      .member("requested_bytes", fragmentation.requested_bytes)
      .member("allocated_bytes", fragmentation.allocated_bytes)
      .member("reserved_bytes", fragmentation.reserved_bytes)
      .member("free_bytes", fragmentation.free_bytes)
      .member("largest_free_bytes", fragmentation.largest_free_bytes)
      .member("free_blocks", fragmentation.free_blocks)
      .member("peak_requested_bytes", fragmentation.peak_requested_bytes)
      .member("peak_reserved_bytes", fragmentation.peak_reserved_bytes)
      .member("internal", fragmentation.internal)
      .member("external", fragmentation.external)
      .member("reserved_ratio", fragmentation.reserved_ratio)
      .member("peak_ratio", fragmentation.peak_ratio);
  json.key("free_block_histogram").list(fragmentation.free_block_histogram);
  return json.end_object().take();
}

CACHALOT_END
