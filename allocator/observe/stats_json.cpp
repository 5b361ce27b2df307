#include <nlohmann/json.hpp>

#include "cachalot/stats.h"

namespace cachalot {
namespace {

// Keys in alphabetical order, as torch.cuda.memory_stats sorts them.
using SortedJson = nlohmann::json;

void add(SortedJson& json, const std::string& name, const Stat& stat) {
  json[name + ".current"] = stat.current;
  json[name + ".peak"] = stat.peak;
  json[name + ".allocated"] = stat.allocated;
  json[name + ".freed"] = stat.freed;
}

void add(SortedJson& json, const std::string& name, const StatArray& stats) {
  add(json, name + ".all", stats.all);
  add(json, name + ".small_pool", stats.small_pool);
  add(json, name + ".large_pool", stats.large_pool);
}

}  // namespace

std::string to_json(const DeviceStats& stats) {
  SortedJson json;
  add(json, "allocation", stats.allocation);
  add(json, "segment", stats.segment);
  add(json, "active", stats.active);
  add(json, "inactive_split", stats.inactive_split);
  add(json, "allocated_bytes", stats.allocated_bytes);
  add(json, "reserved_bytes", stats.reserved_bytes);
  add(json, "active_bytes", stats.active_bytes);
  add(json, "inactive_split_bytes", stats.inactive_split_bytes);
  add(json, "requested_bytes", stats.requested_bytes);
  add(json, "oversize_allocations", stats.oversize_allocations);
  add(json, "oversize_segments", stats.oversize_segments);
  json["num_alloc_retries"] = stats.num_alloc_retries;
  json["num_ooms"] = stats.num_ooms;
  json["num_sync_all_streams"] = stats.num_sync_all_streams;
  json["num_device_alloc"] = stats.num_device_alloc;
  json["num_device_free"] = stats.num_device_free;
  json["max_split_size"] = stats.max_split_size;
  return json.dump();
}

std::string to_json(const Fragmentation& fragmentation) {
  const nlohmann::ordered_json json = {
      {"requested_bytes", fragmentation.requested_bytes},
      {"allocated_bytes", fragmentation.allocated_bytes},
      {"reserved_bytes", fragmentation.reserved_bytes},
      {"free_bytes", fragmentation.free_bytes},
      {"largest_free_bytes", fragmentation.largest_free_bytes},
      {"free_blocks", fragmentation.free_blocks},
      {"peak_requested_bytes", fragmentation.peak_requested_bytes},
      {"peak_reserved_bytes", fragmentation.peak_reserved_bytes},
      {"internal", fragmentation.internal},
      {"external", fragmentation.external},
      {"reserved_ratio", fragmentation.reserved_ratio},
      {"peak_ratio", fragmentation.peak_ratio},
      {"free_block_histogram", fragmentation.free_block_histogram},
  };
  return json.dump();
}

}  // namespace cachalot
