// Statistics and snapshots as JSON.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/json_writer.h"
#include "cachalot/stats.h"
#include "policy/options_without_effect.h"

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
  json.begin_object().member("requested_bytes", fragmentation.requested_bytes);
  json.member("allocated_bytes", fragmentation.allocated_bytes).member("reserved_bytes", fragmentation.reserved_bytes);
  json.member("free_bytes", fragmentation.free_bytes).member("largest_free_bytes", fragmentation.largest_free_bytes);
  json.member("free_blocks", fragmentation.free_blocks);
  json.member("peak_requested_bytes", fragmentation.peak_requested_bytes);
  json.member("peak_reserved_bytes", fragmentation.peak_reserved_bytes).member("internal", fragmentation.internal);
  json.member("external", fragmentation.external).member("reserved_ratio", fragmentation.reserved_ratio);
  json.member("peak_ratio", fragmentation.peak_ratio);
  json.key("free_block_histogram").list(fragmentation.free_block_histogram);
  return json.end_object().take();
}

namespace {

// PyTorch shows streams as integers.
std::int64_t number(Stream stream) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(stream)); }

const char* name(PoolKind kind) { return kind == PoolKind::small ? "small" : "large"; }

const char* name(BlockSnapshot::State state) {
  switch (state) {
    case BlockSnapshot::State::active_allocated:
      return "active_allocated";
    case BlockSnapshot::State::active_pending_free:
      return "active_pending_free";
    case BlockSnapshot::State::inactive:
      return "inactive";
  }
  return "unknown";
}

void write_block(JsonWriter& json, const BlockSnapshot& block) {
  json.begin_object().member("address", block.address).member("size", block.size);
  json.member("requested_size", block.requested_size).member("state", name(block.state));
  json.key("frames").raw("[]").end_object();
}

void write_segment(JsonWriter& json, const SegmentSnapshot& segment) {
  json.begin_object().member("device", segment.device).member("address", segment.address);
  json.member("total_size", segment.total_size).member("allocated_size", segment.allocated_size);
  json.member("active_size", segment.active_size).member("requested_size", segment.requested_size);
  json.member("stream", number(segment.stream)).member("segment_type", name(segment.segment_type));
  json.key("segment_pool_id").begin_array();
  json.value(segment.segment_pool_id.first).value(segment.segment_pool_id.second).end_array();
  json.member("is_expandable", segment.is_expandable).key("frames").raw("[]");
  if (segment.asleep_size != 0) json.member("asleep_size", segment.asleep_size);
  json.key("blocks").list(segment.blocks, write_block).end_object();
}

// Changes that PyTorch does not know are not shown.
bool is_torch_action(Change::Action action) { return action <= Change::Action::oom; }

void write_trace_entry(JsonWriter& json, const Change& change) {
  json.begin_object().member("action", to_string(change.action));
  json.member(change.action == Change::Action::oom ? "device_free" : "addr", change.address);
  json.member("size", change.bytes).member("stream", number(change.stream)).member("time_us", change.time_us);
  json.member("compile_context", "N/A").member("user_metadata", "");
  if (change.context) json.key("frames").raw("[]");
  json.end_object();
}

void write_trace(JsonWriter& json, const std::vector<Change>& trace) {
  json.begin_array();
  for (const Change& change : trace) {
    if (is_torch_action(change.action)) write_trace_entry(json, change);
  }
  json.end_array();
}

void write_settings(JsonWriter& json, const Options& options) {
  const bool unlimited = options.max_split_size == Options::kUnlimited;
  const auto accepted = [&](std::string_view key) { return accepted_without_effect(key).value(options); };
  json.begin_object().member("PYTORCH_CUDA_ALLOC_CONF", options.text);
  json.member("max_split_size", unlimited ? std::int64_t{-1} : static_cast<std::int64_t>(options.max_split_size));
  json.member("garbage_collection_threshold", options.garbage_collection_threshold);
  json.member("expandable_segments", takes_pages(options));
  json.member("pinned_num_register_threads", accepted("pinned_num_register_threads"));
  json.member("release_lock_on_cudamalloc", accepted("release_lock_on_cudamalloc") != 0);
  json.member("pinned_use_cuda_host_register", accepted("pinned_use_cuda_host_register") != 0);
  json.member("graph_capture_record_stream_reuse", accepted("graph_capture_record_stream_reuse") != 0);
  json.key("roundup_power2_divisions").begin_object();
  for (std::size_t slot = 0; slot < Options::kRoundupSlots; ++slot) {  // the key is the slot's MiB
    json.member(std::to_string(std::size_t{1} << slot), options.roundup_power2_divisions[slot]);
  }
  json.end_object().end_object();
}

}  // namespace

std::string to_json(const Snapshot& snapshot) {
  JsonWriter json;
  json.begin_object();
  json.key("segments").list(snapshot.segments, write_segment);
  json.key("device_traces").list(snapshot.device_traces, write_trace);
  write_settings(json.key("allocator_settings"), snapshot.options);
  json.key("external_annotations").raw("[]");
  return json.end_object().take();
}

CACHALOT_END
