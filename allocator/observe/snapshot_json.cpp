#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "cachalot/snapshot.h"
#include "policy/accepted_without_effect.h"

CACHALOT_BEGIN
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
  json.begin_object()
      .member("address", block.address)
      .member("size", block.size)
      .member("requested_size", block.requested_size)
      .member("state", name(block.state));
  json.key("frames").raw("[]").end_object();
}

void write_segment(JsonWriter& json, const SegmentSnapshot& segment) {
  json.begin_object()
      .member("device", segment.device)
      .member("address", segment.address)
      .member("total_size", segment.total_size)
      .member("allocated_size", segment.allocated_size)
      .member("active_size", segment.active_size)
      .member("requested_size", segment.requested_size)
      .member("stream", number(segment.stream))
      .member("segment_type", name(segment.segment_type));
  json.key("segment_pool_id").begin_array();
  json.value(segment.segment_pool_id.first).value(segment.segment_pool_id.second).end_array();
  json.member("is_expandable", segment.is_expandable).key("frames").raw("[]");
  if (segment.asleep_size != 0) json.member("asleep_size", segment.asleep_size);
  json.key("blocks").list(segment.blocks, write_block).end_object();
}

// Changes that PyTorch does not know are not shown.
bool is_torch_action(Change::Action action) { return action <= Change::Action::oom; }

void write_trace_entry(JsonWriter& json, const Change& change) {
  json.begin_object()
      .member("action", to_string(change.action))
      .member(change.action == Change::Action::oom ? "device_free" : "addr", change.address)
      .member("size", change.bytes)
      .member("stream", number(change.stream))
      .member("time_us", change.time_us)
      .member("compile_context", "N/A")
      .member("user_metadata", "");
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
  json.begin_object()
      .member("PYTORCH_CUDA_ALLOC_CONF", options.text)
      .member("max_split_size", unlimited ? std::int64_t{-1} : static_cast<std::int64_t>(options.max_split_size))
      .member("garbage_collection_threshold", options.garbage_collection_threshold)
      .member("expandable_segments", options.expandable_segments)
      .member("pinned_num_register_threads", accepted("pinned_num_register_threads"))
      .member("release_lock_on_cudamalloc", accepted("release_lock_on_cudamalloc") != 0)
      .member("pinned_use_cuda_host_register", accepted("pinned_use_cuda_host_register") != 0)
      .member("graph_capture_record_stream_reuse", accepted("graph_capture_record_stream_reuse") != 0);
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
