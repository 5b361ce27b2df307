// Segments, blocks and trace entries come by the hundred thousand and hold no text of the user's, so they are written
// straight into one buffer; the settings, which do, go through a JSON library.
#include <fmt/compile.h>
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "cachalot/snapshot.h"
#include "observe/json_text.h"

namespace cachalot {
namespace {

using Buffer = fmt::memory_buffer;

template <typename Format, typename... Args>
void append(Buffer& out, const Format& format, const Args&... args) {
  fmt::format_to(std::back_inserter(out), format, args...);
}

// "[item,item,…]"
template <typename Items, typename WriteItem>
void write_list(Buffer& out, const Items& items, WriteItem write_item) {
  out.push_back('[');
  bool first = true;
  for (const auto& item : items) {
    if (!first) out.push_back(',');
    first = false;
    write_item(out, item);
  }
  out.push_back(']');
}

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

void write_block(Buffer& out, const BlockSnapshot& block) {
  append(out, FMT_COMPILE(R"({{"address":{},"size":{},"requested_size":{},"state":"{}","frames":[]}})"), block.address,
         block.size, block.requested_size, name(block.state));
}

void write_segment(Buffer& out, const SegmentSnapshot& segment) {
  append(out,
         FMT_COMPILE(
             R"({{"device":{},"address":{},"total_size":{},"allocated_size":{},"active_size":{},"requested_size":{},)"),
         segment.device, segment.address, segment.total_size, segment.allocated_size, segment.active_size,
         segment.requested_size);
  append(out,
         FMT_COMPILE(
             R"("stream":{},"segment_type":"{}","segment_pool_id":[{},{}],"is_expandable":{},"frames":[],"blocks":)"),
         number(segment.stream), name(segment.segment_type), segment.segment_pool_id.first,
         segment.segment_pool_id.second, segment.is_expandable);
  write_list(out, segment.blocks, write_block);
  out.push_back('}');
}

// Changes that PyTorch does not know are not shown.
bool is_torch_action(Change::Action action) { return action <= Change::Action::oom; }

void write_trace_entry(Buffer& out, const Change& change) {
  const char* const address_key = change.action == Change::Action::oom ? "device_free" : "addr";
  append(
      out,
      FMT_COMPILE(
          R"({{"action":"{}","{}":{},"size":{},"stream":{},"time_us":{},"compile_context":"N/A","user_metadata":"")"),
      to_string(change.action), address_key, change.address, change.bytes, number(change.stream), change.time_us);
  if (change.context) append(out, FMT_COMPILE(R"(,"frames":[])"));
  out.push_back('}');
}

void write_trace(Buffer& out, const std::vector<Change>& trace) {
  std::vector<std::reference_wrapper<const Change>> shown;
  shown.reserve(trace.size());
  for (const Change& change : trace) {
    if (is_torch_action(change.action)) shown.emplace_back(change);
  }
  write_list(out, shown, write_trace_entry);
}

nlohmann::ordered_json roundup_json(const Options& options) {
  nlohmann::ordered_json json;
  for (std::size_t slot = 0; slot < Options::kRoundupSlots; ++slot) {
    json[std::to_string(std::size_t{1} << slot)] = options.roundup_power2_divisions[slot];  // key: the slot's MiB
  }
  return json;
}

std::string settings_json(const Options& options) {
  const bool unlimited = options.max_split_size == Options::kUnlimited;
  const nlohmann::ordered_json json = {
      {"PYTORCH_CUDA_ALLOC_CONF", options.text},
      {"max_split_size", unlimited ? std::int64_t{-1} : static_cast<std::int64_t>(options.max_split_size)},
      {"garbage_collection_threshold", options.garbage_collection_threshold},
      {"expandable_segments", options.expandable_segments},
      {"pinned_num_register_threads", options.pinned_num_register_threads},
      {"release_lock_on_cudamalloc", options.release_lock_on_cudamalloc},
      {"pinned_use_cuda_host_register", options.pinned_use_cuda_host_register},
      {"graph_capture_record_stream_reuse", options.graph_capture_record_stream_reuse},
      {"roundup_power2_divisions", roundup_json(options)},
  };
  return text_of(json);
}

}  // namespace

std::string to_json(const Snapshot& snapshot) {
  Buffer out;
  append(out, FMT_COMPILE(R"({{"segments":)"));
  write_list(out, snapshot.segments, write_segment);
  append(out, FMT_COMPILE(R"(,"device_traces":)"));
  write_list(out, snapshot.device_traces, write_trace);
  append(out, FMT_COMPILE(R"(,"allocator_settings":{},"external_annotations":[]}})"), settings_json(snapshot.options));
  return fmt::to_string(out);
}

}  // namespace cachalot
