// A history as PyTorch's own snapshot, the pickle of torch.cuda.memory._dump_snapshot.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/base/output_file.h"
#include "tools/base/pickle_opcodes.h"
#include "tools/history/history.h"
#include "tools/output/export_formats.h"

namespace cachalot::tools {
namespace {

using PickledId = std::uint32_t;  // names a value that was written

// Python's own pickler writes `kBatch` parts at once. The memory viewer passes them as arguments of one call, of which
// browsers allow some ten thousand.
constexpr int kBatch = 1000;
constexpr std::size_t kLongestRemembered = 256;  // longer texts seldom come again

// Writes a pickle of protocol 4, which every Python since 3.4 and PyTorch's memory viewer read, of plain data: dicts, lists,
// pairs, whole numbers and text. A text is written once, and named where it comes again.
//
//   pickle.begin_dict();
//   pickle.key("sizes");
//   pickle.begin_list();
//   pickle.add(std::uint64_t{512});
//   pickle.end_list();
//   pickle.end_dict();
//   pickle.finish();
class PickleWriter {
 public:
  explicit PickleWriter(OutputFile& out) : out_(out) {
    opcode(Opcode::proto);
    little_endian(4, 1);
  }

  void begin_dict() {
    value();
    opcode(Opcode::empty_dict);
    open_.push_back({});
  }

  // Then its value.
  void key(std::string_view name) {
    Open& dict = open_.back();
    if (!dict.has_batch) opcode(Opcode::mark);
    dict.has_batch = true;
    add_text(name);
  }

  void end_dict() { end(Opcode::setitems); }

  void begin_list() {
    value();
    opcode(Opcode::empty_list);
    open_.push_back({.is_list = true});
  }

  void end_list() { end(Opcode::appends); }

  void add(std::uint64_t number) {
    if (number <= std::numeric_limits<std::int64_t>::max()) return add(static_cast<std::int64_t>(number));
    value();
    opcode(Opcode::long1);
    little_endian(9, 1);  // with a byte for the sign
    little_endian(number, 8);
    little_endian(0, 1);
  }

  void add(std::int64_t number) {
    value();
    const auto bits = static_cast<std::uint64_t>(number);
    if (number >= 0 && number <= std::numeric_limits<std::uint8_t>::max()) {
      opcode(Opcode::binint1);
      little_endian(bits, 1);
    } else if (number >= 0 && number <= std::numeric_limits<std::uint16_t>::max()) {
      opcode(Opcode::binint2);
      little_endian(bits, 2);
    } else if (number == static_cast<std::int32_t>(number)) {
      opcode(Opcode::binint);
      little_endian(bits, 4);
    } else {
      const auto bytes =
          static_cast<int>(std::bit_width(number < 0 ? ~bits : bits) + 8) / 8;  // with the bit for the sign
      opcode(Opcode::long1);
      little_endian(static_cast<std::uint64_t>(bytes), 1);
      little_endian(bits, bytes);
    }
  }

  void add(bool boolean) {
    value();
    opcode(boolean ? Opcode::newtrue : Opcode::newfalse);
  }

  void add(std::string_view text) {
    value();
    add_text(text);
  }

  void add_pair(std::uint64_t first, std::uint64_t second) {
    value();
    open_.push_back({});  // its items are not items of the list
    add(first);
    add(second);
    open_.pop_back();
    opcode(Opcode::tuple2);
  }

  // The last value, a finished one, can be named: add_again writes the name in its place.
  PickledId remember() {
    opcode(Opcode::memoize);
    return remembered_++;
  }

  void add_again(PickledId id) {
    value();
    add_name(id);
  }

  // Ends the pickle; the file is not finished.
  void finish() { opcode(Opcode::stop); }

 private:
  struct Open {
    int parts = 0;           // since the last batch
    bool has_batch = false;  // a mark has been written for it
    bool is_list = false;
  };

  // Comes before each one.
  // A list's parts are written in batches; dicts are small.
  void value() {
    if (open_.empty() || !open_.back().is_list) return;
    Open& list = open_.back();
    if (list.parts == kBatch) {
      opcode(Opcode::appends);
      list = {.is_list = true};
    }
    if (!list.has_batch) opcode(Opcode::mark);
    list.has_batch = true;
    ++list.parts;
  }

  void end(Opcode code) {
    if (open_.back().has_batch) opcode(code);
    open_.pop_back();
  }

  void opcode(Opcode code) { little_endian(static_cast<std::uint64_t>(code), 1); }

  void little_endian(std::uint64_t number, int bytes) {
    char text[8];
    for (int i = 0; i < bytes; ++i) text[i] = static_cast<char>(number >> (8 * i));
    out_.write({text, static_cast<std::size_t>(bytes)});
  }

  void add_name(PickledId id) { with_number(Opcode::binget, Opcode::long_binget, id); }

  // The opcode for a number of one byte, or that for one of four.
  void with_number(Opcode of_one, Opcode of_four, std::uint64_t number) {
    const bool is_short = number <= std::numeric_limits<std::uint8_t>::max();
    opcode(is_short ? of_one : of_four);
    little_endian(number, is_short ? 1 : 4);
  }

  void add_text(std::string_view text) {
    const auto known = texts_.find(text);
    if (known != texts_.end()) return add_name(known->second);
    with_number(Opcode::short_binunicode, Opcode::binunicode, text.size());
    out_.write(text);
    if (text.size() <= kLongestRemembered) texts_.emplace(text, remember());
  }

  OutputFile& out_;
  std::vector<Open> open_;
  PickledId remembered_ = 0;
  std::map<std::string, PickledId, std::less<>> texts_;
};

using Action = HistoryEvent::Action;

constexpr std::string_view kNoCompileContext = "N/A";  // PyTorch's

constexpr std::array kTorchBlockStates = {"active_allocated", "active_pending_free", "inactive"};

class TorchSnapshotWriter {
 public:
  TorchSnapshotWriter(const History& history, OutputFile& out) : history_(history), pickle_(out) {}

  void write(const std::vector<const DeviceHistory*>& devices) {
    pickle_.begin_dict();
    write_devices(devices);
    put_dict("allocator_settings", [&] { put_text("PYTORCH_CUDA_ALLOC_CONF", history_.settings); });
    write_stages();
    if (!history_.host.empty()) write_host();
    if (!history_.facts.empty()) {  // cachalot's own part, which PyTorch's tools skip
      put_dict("cachalot",
               [&] { put_dicts("facts", history_.facts, [&](const DeviceFacts& facts) { write_facts(facts); }); });
    }
    pickle_.end_dict();
    pickle_.finish();
  }

 private:
  template <typename Value>
  void put(std::string_view key, Value value) {
    pickle_.key(key);
    pickle_.add(value);
  }
  void put_text(std::string_view key, std::string_view text) {
    pickle_.key(key);
    pickle_.add(std::string_view(utf8_of(text)));
  }
  void put_stream(std::uint16_t stream) { put("stream", static_cast<std::int64_t>(history_.streams[stream])); }
  void put_pool(std::string_view key, std::uint16_t pool) {
    pickle_.key(key);
    pickle_.add_pair(history_.pools[pool].first, history_.pools[pool].second);
  }
  // `write` writes the keys of a dict, or the items of a list.
  template <typename Write>
  void put_dict(std::string_view key, Write write) {
    pickle_.key(key);
    pickle_.begin_dict();
    write();
    pickle_.end_dict();
  }
  template <typename Write>
  void put_list(std::string_view key, Write write) {
    pickle_.key(key);
    pickle_.begin_list();
    write();
    pickle_.end_list();
  }
  template <typename Items, typename Write>
  void put_dicts(std::string_view key, const Items& items, Write write_keys) {
    pickle_.key(key);
    write_list(items, [&](const auto& item) {
      pickle_.begin_dict();
      write_keys(item);
      pickle_.end_dict();
    });
  }
  template <typename Items, typename Write>
  void write_list(const Items& items, Write write_item) {
    pickle_.begin_list();
    for (const auto& item : items) write_item(item);
    pickle_.end_list();
  }

  // ---- call stacks: each stack and each frame once

  void put_stack(std::string_view key, StackId stack) {
    pickle_.key(key);
    std::optional<PickledId>& known = known_in(stacks_, stack);
    if (known) return pickle_.add_again(*known);
    write_list(history_.stacks[stack], [&](FrameId frame) { put_frame(frame); });
    known = pickle_.remember();
  }

  void put_frame(FrameId id) {
    std::optional<PickledId>& known = known_in(frames_, id);
    if (known) return pickle_.add_again(*known);
    const StackFrame& frame = history_.stacks.frame(id);
    pickle_.begin_dict();
    put_text("name", history_.texts[frame.function]);
    put_text("filename", history_.texts[frame.file]);
    put("line", std::uint64_t{frame.line});
    if (frame.node != 0) put_text("fx_node_name", history_.texts[frame.node]);
    pickle_.end_dict();
    known = pickle_.remember();
  }

  // Writes the calls of forward as text, the oldest first, without the frames that a traceback cannot show.
  void put_forward_stack(StackId stack) {
    const std::span<const FrameId> frames = history_.stacks[stack];
    if (!std::ranges::all_of(frames, [&](FrameId frame) { return is_in_traceback(frame); }))
      return put_stack("forward_frames", stack);
    pickle_.key("forward_frames");
    std::optional<PickledId>& known = known_in(forward_stacks_, stack);
    if (known) return pickle_.add_again(*known);
    pickle_.begin_list();
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      const std::string line(utf8_of(traceback_text(call_of(*frame))));
      pickle_.add(std::string_view{line});
    }
    pickle_.end_list();
    known = pickle_.remember();
  }
  TracebackCall call_of(FrameId id) const {
    const StackFrame& frame = history_.stacks.frame(id);
    return {.file = history_.texts[frame.file], .function = history_.texts[frame.function], .line = frame.line};
  }
  bool is_in_traceback(FrameId id) const {
    const TracebackCall call = call_of(id);
    return history_.stacks.frame(id).node == 0 && call_of_traceback(traceback_text(call)) == call;
  }

  static std::optional<PickledId>& known_in(std::vector<std::optional<PickledId>>& ids, std::uint32_t id) {
    if (ids.size() <= id) ids.resize(id + 1);
    return ids[id];
  }

  // ---- segments and events

  void write_devices(const std::vector<const DeviceHistory*>& devices) {
    put_list("segments", [&] {
      for (const DeviceHistory* device : devices) {
        for (const HistorySegment& segment : device->segments) write_segment(*device, segment, device->device);
        for (const HistorySegment& segment : device->asleep) write_segment(*device, segment, device->device, true);
      }
    });
    put_list("device_traces", [&] {
      int next = 0;  // the place in the list is the device's number
      for (const DeviceHistory* device : devices) {
        const auto write = [&](const HistoryEvent& event) { write_event(event); };
        for (; next < device->device; ++next) write_list(std::vector<HistoryEvent>(), write);
        write_list(device->events, write);
        ++next;
      }
    });
  }

  // Pinned memory has the device -1, and its events are one list.
  void write_host() {
    put_list("host_segments", [&] {
      for (const DeviceHistory& host : history_.host) {
        for (const HistorySegment& segment : host.segments) write_segment(host, segment, -1);
      }
    });
    put_list("host_traces", [&] {
      for (const DeviceHistory& host : history_.host) {
        for (const HistoryEvent& event : host.events) write_event(event);
      }
    });
  }

  void write_segment(const DeviceHistory& device, const HistorySegment& segment, int number, bool is_asleep = false) {
    std::uint64_t allocated = 0;
    std::uint64_t active = 0;
    std::uint64_t requested = 0;
    for (const HistoryBlock& block : device.blocks_of(segment)) {
      if (block.state == HistoryBlock::State::free) continue;
      if (block.state == HistoryBlock::State::allocated) allocated += block.bytes;
      active += block.bytes;
      requested += block.requested_bytes;
    }
    pickle_.begin_dict();
    put("device", static_cast<std::int64_t>(number));
    put("address", segment.address);
    put("total_size", segment.bytes);
    put("allocated_size", allocated);
    put("active_size", active);
    put("requested_size", requested);
    put_stream(segment.stream);
    put_text("segment_type", segment.is_small ? "small" : "large");
    put_pool("segment_pool_id", segment.pool);
    put("is_expandable", segment.is_expandable);
    if (is_asleep) put("asleep_size", segment.bytes);
    put_stack("frames", segment.stack);
    put_dicts("blocks", device.blocks_of(segment), [&](const HistoryBlock& block) { write_block(block); });
    pickle_.end_dict();
  }

  void write_block(const HistoryBlock& block) {
    put("address", block.address);
    put("size", block.bytes);
    put("requested_size", block.requested_bytes);
    put_text("state", kTorchBlockStates[static_cast<std::size_t>(block.state)]);
    const EventDetails& details = history_.details[block.details];
    if (details.compile_context != 0) put_text("compile_context", text(details.compile_context));
    if (details.user_metadata != 0) put_text("user_metadata", text(details.user_metadata));
    if (block.owner != 0) put_text("owner", text(block.owner));
    if (block.owner_kind != 0) put_text("owner_kind", text(block.owner_kind));
    put_rest(block.stack, details);
  }

  void write_event(const HistoryEvent& event) {
    const EventDetails& details = history_.details[event.details];
    pickle_.begin_dict();
    put_text("action", name_of(event.action));
    put(event.action == Action::oom ? "device_free" : "addr", event.address);
    put("size", event.bytes);
    put_stream(event.stream);
    put_pool("pool_id", event.pool);
    put("time_us", event.time_us);
    put_text("compile_context", details.compile_context == 0 ? kNoCompileContext : text(details.compile_context));
    put_text("user_metadata", text(details.user_metadata));
    put_rest(event.stack, details);
    pickle_.end_dict();
  }

  // Writes the fields that blocks and events share.
  void put_rest(StackId stack, const EventDetails& details) {
    if (details.internal_metadata != 0) put_text("internal_metadata", text(details.internal_metadata));
    put_stack("frames", stack);
    if (details.forward_stack != 0) put_forward_stack(details.forward_stack);
  }

  std::string_view text(TextId id) const { return history_.texts[id]; }

  // ---- the rest

  void write_stages() {
    put_dicts("external_annotations", history_.stages, [&](const StageMark& mark) {
      put("device", static_cast<std::int64_t>(mark.device));
      put_text("name", text(mark.name));
      put_text("stage", mark.begins ? "START" : "END");
      put("time_us", mark.time_us);
    });
  }

  void write_facts(const DeviceFacts& facts) {
    const auto put_known = [&](std::string_view key, const std::optional<std::uint64_t>& bytes) {
      if (bytes) put(key, *bytes);
    };
    put("device", static_cast<std::int64_t>(facts.device));
    put_text("name", facts.name);
    put_known("total_bytes", facts.total_bytes);
    put_known("free_bytes", facts.free_bytes);
    put_known("limit_bytes", facts.limit_bytes);
    put_known("nccl_bytes", facts.nccl_bytes);
    put_known("context_bytes", facts.context_bytes);
    put_known("process_bytes", facts.process_bytes);
    put_dicts("processes", facts.other_processes, [&](const DeviceFacts::Process& process) {
      put("pid", process.id);
      put("bytes", process.bytes);
      put_text("name", process.name);
    });
    if (facts.failing) put_dict("failing", [&] { write_failing(*facts.failing); });
  }

  void write_failing(const DeviceFacts::Failing& failing) {
    put_text("who", failing.who);
    put("segment_bytes", failing.segment_bytes);
    put("has_pages", failing.has_pages);
    put("is_refused", failing.is_refused);
    put("has_nccl", failing.has_nccl);
    put("knows_owners", failing.knows_owners);
    put_dicts("tags", failing.tags, [&](const DeviceFacts::Tag& tag) {
      pickle_.key("pool_id");
      pickle_.add_pair(tag.pool.first, tag.pool.second);
      put_text("name", tag.name);
    });
    put_dicts("libraries", failing.libraries, [&](const DeviceFacts::Library& library) {
      put_text("name", library.name);
      put("bytes", library.bytes);
    });
  }

  const History& history_;
  PickleWriter pickle_;
  std::vector<std::optional<PickledId>> stacks_;
  std::vector<std::optional<PickledId>> forward_stacks_;
  std::vector<std::optional<PickledId>> frames_;
};

}  // namespace

void write_torch_snapshot(const History& history, const ExportOptions& options, OutputFile& out) {
  TorchSnapshotWriter(history, out).write(devices_of(history, options));
}

}  // namespace cachalot::tools
