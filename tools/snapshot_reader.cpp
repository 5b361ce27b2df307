#include "tools/snapshot_reader.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/caching_allocator.h"
#include "tools/foreign_files.h"
#include "tools/pickle_reader.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kMostBytesInAll = std::size_t{1} << 62;
constexpr std::uint64_t kMostDevices = 1 << 16;
constexpr std::size_t kLongestText = 4096;  // of a frame's, to be compared and shown
// Of a segment, a block, an entry or a frame; PyTorch's have up to 13. A key is looked for among all of its dict.
constexpr std::size_t kMostKeys = 256;

// Protocol 2 and later begin with PROTO; the dicts and lists of 0 and 1 with a mark or with themselves.
bool begins_pickle(unsigned char byte) {
  const std::string_view first = "\x80(}]";
  return first.find(static_cast<char>(byte)) != std::string_view::npos;
}

std::unique_ptr<PlainDocument> read_document(InputFile file) {
  require_snapshot(file);
  // A list in JSON begins with '[', one in a pickle with ']'.
  const unsigned char first = file.peek().value_or(0);
  if (first == '{' || first == '[') return read_json(std::move(file));
  return read_pickle(std::move(file));
}

bool is_of_a_library(std::string_view file) {
  constexpr std::array kLibraries = {"/site-packages/", "/dist-packages/", "/torch/",
                                     "/lib/python",     "<frozen",         "/cachalot_simulator/"};
  return std::ranges::any_of(kLibraries,
                             [&](std::string_view part) { return file.find(part) != std::string_view::npos; });
}

class SnapshotReader {
 public:
  explicit SnapshotReader(InputFile file) {
    snapshot_.path = file.path();
    snapshot_.document = read_document(std::move(file));
  }

  TorchSnapshot read() {
    const Value root = snapshot_.document->root();
    if (root.items() != nullptr) {  // torch.cuda.memory_snapshot()
      where_ = "the snapshot";
      read_segments(*root.items());
      return std::move(snapshot_);
    }
    where_ = "the snapshot";
    require(root.entries() != nullptr, "it is {}, not a dict or a list of segments", root.kind_name());
    read_segments(items(root, "segments"));
    where_ = "the snapshot";
    if (root.find("device_traces") != nullptr) read_histories(items(root, "device_traces"));
    read_settings(root.find("allocator_settings"));
    return std::move(snapshot_);
  }

 private:
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    if (holds) [[likely]]
      return;
    throw InvalidArgument(
        fmt::format("{}: {}: {}", snapshot_.path, where_, fmt::format(rule, std::forward<Args>(args)...)));
  }

  // A file may name one part a thousand times, and that part another one. Of parts that differ there are at most so many.
  void visit() {
    require(++visited_ <= snapshot_.document->value_count(), "the file names the same parts again and again");
  }

  void require_part(Value dict, const char* what = "it") const {
    require(dict.entries() != nullptr, "{} is {}, not a dict", what, dict.kind_name());
    require(dict.entries()->size() <= kMostKeys, "{} has {} keys, more than {}", what, dict.entries()->size(),
            kMostKeys);
  }

  // ---- fields

  const Value& field(Value dict, const char* key) const {
    const Value* value = dict.find(key);
    require(value != nullptr, "'{}' is missing", key);
    return *value;
  }
  const List& items(Value dict, const char* key) const {
    const Value& value = field(dict, key);
    require(value.items() != nullptr, "'{}' is {}, not a list", key, value.kind_name());
    return *value.items();
  }
  std::uint64_t natural(Value dict, const char* key, std::uint64_t most) const {
    const Value& value = field(dict, key);
    const std::optional<std::uint64_t> number = value.natural();
    if (!number && value.integer()) require(false, "'{}' is {}, which is negative", key, *value.integer());
    require(number.has_value(), "'{}' is {}, not a whole number of 64 bits", key, value.kind_name());
    require(*number <= most, "'{}' is {}, more than {}", key, *number, most);
    return *number;
  }
  std::size_t bytes(Value dict, const char* key) const { return natural(dict, key, kMaxRequestBytes - 1); }
  std::size_t bytes_or(Value dict, const char* key, std::size_t otherwise) const {
    return dict.find(key) == nullptr ? otherwise : bytes(dict, key);
  }
  Address address(Value dict, const char* key) const {
    return natural(dict, key, std::numeric_limits<Address>::max() - kMaxRequestBytes);
  }
  // A handle; PyTorch shows it as a number with a sign.
  Stream stream(Value dict) const {
    const Value& value = field(dict, "stream");
    const std::optional<std::int64_t> negative = value.integer();
    const std::optional<std::uint64_t> number = value.natural();
    require(negative || number, "'stream' is {}, not a whole number of 64 bits", value.kind_name());
    return reinterpret_cast<Stream>(number ? *number : static_cast<std::uint64_t>(*negative));
  }
  std::string_view text(Value dict, const char* key) const {
    const Value& value = field(dict, key);
    require(value.text().has_value(), "'{}' is {}, not text", key, value.kind_name());
    return *value.text();
  }

  // ---- segments

  void read_segments(const List& segments) {
    snapshot_.memory.segments.reserve(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) {
      where_ = fmt::format("segment {}", i);
      visit();
      read_segment(segments[i]);
    }
  }

  void read_segment(Value dict) {
    require_part(dict);
    SegmentSnapshot segment;
    segment.device = static_cast<int>(natural(dict, "device", kMostDevices));
    segment.address = address(dict, "address");
    segment.total_size = bytes(dict, "total_size");
    segment.stream = stream(dict);
    segment.segment_type = pool_kind(text(dict, "segment_type"));
    if (const Value* id = dict.find("segment_pool_id")) segment.segment_pool_id = pool_id(*id);
    if (const Value* expandable = dict.find("is_expandable")) {
      segment.is_expandable = expandable->boolean().value_or(false);
    }
    segment.context = site(dict.find("frames"));
    bytes_in_all_ += segment.total_size;
    require(bytes_in_all_ < kMostBytesInAll, "the segments have more than {} bytes in all", kMostBytesInAll);
    read_blocks(items(dict, "blocks"), segment);
    snapshot_.memory.segments.push_back(std::move(segment));
  }

  void read_blocks(const List& blocks, SegmentSnapshot& segment) {
    const std::string where = where_;
    std::size_t left = segment.total_size;
    Address next = segment.address;  // where the block begins, if the file does not say
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      where_ = fmt::format("{}, block {}", where, i);
      visit();
      const BlockSnapshot block = read_block(blocks[i], next);
      require(block.size <= left, "with its {} bytes, the blocks have more than the segment's {}", block.size,
              segment.total_size);
      left -= block.size;
      next = block.address + block.size;
      add_up(segment, block);
      segment.blocks.push_back(block);
    }
  }

  BlockSnapshot read_block(Value dict, Address next) {
    require_part(dict);
    BlockSnapshot block;
    block.address = dict.find("address") == nullptr ? next : address(dict, "address");
    block.size = bytes(dict, "size");
    block.requested_size = bytes_or(dict, "requested_size", block.size);
    block.state = state(text(dict, "state"));
    block.context = site(dict.find("frames"));
    return block;
  }

  // What the file says of a segment's sums is not needed.
  static void add_up(SegmentSnapshot& segment, const BlockSnapshot& block) {
    if (block.state == BlockSnapshot::State::inactive) return;
    if (block.state == BlockSnapshot::State::active_allocated) segment.allocated_size += block.size;
    segment.active_size += block.size;
    segment.requested_size += std::min(block.requested_size, block.size);
  }

  BlockSnapshot::State state(std::string_view text) const {
    if (text == "active_allocated") return BlockSnapshot::State::active_allocated;
    if (text == "active_pending_free" || text == "active_awaiting_free") {  // so PyTorch called it before 2.1
      return BlockSnapshot::State::active_pending_free;
    }
    require(text == "inactive", "state {} is none of active_allocated, active_pending_free and inactive", Quoted{text});
    return BlockSnapshot::State::inactive;
  }

  PoolKind pool_kind(std::string_view text) const {
    require(text == "small" || text == "large", "segment_type {} is neither small nor large", Quoted{text});
    return text == "small" ? PoolKind::small : PoolKind::large;
  }

  PoolId pool_id(Value value) const {
    const List* const pair = value.items();
    const bool is_pair = pair != nullptr && pair->size() == 2;
    const auto first = is_pair ? pair->front().natural() : std::nullopt;
    const auto second = is_pair ? pair->back().natural() : std::nullopt;
    require(first && second, "'segment_pool_id' is not a pair of whole numbers");
    return {*first, *second};
  }

  // ---- history

  void read_histories(const List& histories) {
    require(histories.size() <= kMostDevices, "histories of {} devices: at most {}", histories.size(), kMostDevices);
    for (std::size_t device = 0; device < histories.size(); ++device) {
      where_ = fmt::format("history of device {}", device);
      visit();
      require(histories[device].items() != nullptr, "it is {}, not a list", histories[device].kind_name());
      read_history(*histories[device].items(), static_cast<int>(device));
    }
  }

  void read_history(const List& entries, int device) {
    std::vector<Change>& history = snapshot_.memory.device_traces.emplace_back();
    history.reserve(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      where_ = fmt::format("history of device {}, entry {}", device, i);
      visit();
      if (const auto change = read_change(entries[i], device)) history.push_back(*change);
    }
  }

  std::optional<Change> read_change(Value dict, int device) {
    require_part(dict);
    const auto action = action_of(text(dict, "action"));
    if (!action) {
      ++snapshot_.unknown_actions;
      return std::nullopt;
    }
    Change change;
    change.action = *action;
    change.device = device;
    change.address = address(dict, change.action == Change::Action::oom ? "device_free" : "addr");
    change.bytes = bytes(dict, "size");
    change.stream = stream(dict);
    if (const Value* time = dict.find("time_us")) change.time_us = time->integer().value_or(0);
    change.context = site(dict.find("frames"));
    return change;
  }

  static std::optional<Change::Action> action_of(std::string_view text) {
    for (auto action = Change::Action::alloc; action <= Change::Action::oom;
         action = static_cast<Change::Action>(static_cast<int>(action) + 1)) {
      if (text == to_string(action)) return action;
    }
    return std::nullopt;
  }

  void read_settings(const Value* settings) {
    if (settings == nullptr) return;
    const Value* const conf = settings->find("PYTORCH_CUDA_ALLOC_CONF");
    if (conf != nullptr && conf->text()) snapshot_.memory.options.text = conf->text()->substr(0, kLongestText);
  }

  // ---- frames

  // One list of frames serves everything that was asked for there: it is read once.
  Context site(const Value* frames) {
    const List* const list = frames == nullptr ? nullptr : frames->items();
    if (list == nullptr || list->empty()) return nullptr;
    const auto [known, is_new] = sites_.try_emplace(list);
    if (!is_new) return known->second;
    const auto made = std::make_shared<Site>();
    for (const Value& frame : *list) {
      visit();
      made->frames.push_back(read_frame(frame));
    }
    made->place = place_of(made->frames);
    return known->second = made;
  }

  Frame place_of(const std::vector<Frame>& frames) {
    const auto own = std::ranges::find_if(frames, [&](const Frame& frame) { return is_own(frame.file); });
    return own == frames.end() ? frames.front() : *own;
  }

  // A million frames may name one text: it is searched once.
  bool is_own(std::string_view file) {
    const auto [known, is_new] = own_files_.try_emplace(file.data());
    if (is_new) known->second = file.ends_with(".py") && !is_of_a_library(file);
    return known->second;
  }

  Frame read_frame(Value dict) const {
    require_part(dict, "a frame");
    Frame frame;
    frame.file = text(dict, "filename").substr(0, kLongestText);
    frame.function = text(dict, "name").substr(0, kLongestText);
    const Value* const line = dict.find("line");
    frame.line = line == nullptr ? 0 : line->natural().value_or(0);
    if (frame.line > std::numeric_limits<std::int64_t>::max()) frame.line = 0;  // -1: Python does not know it
    return frame;
  }

  TorchSnapshot snapshot_;
  std::string where_;
  std::size_t visited_ = 0;
  std::size_t bytes_in_all_ = 0;
  std::unordered_map<const List*, Context> sites_;
  std::unordered_map<const char*, bool> own_files_;  // by where the document has the text
};

}  // namespace

bool is_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  return first && (*first == '{' || *first == '[' || begins_pickle(*first));
}

void require_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  const std::string trouble = file.trouble();
  CACHALOT_REQUIRE(trouble.empty(), "{}: {}", file.path(), trouble);
  CACHALOT_REQUIRE(first.has_value(), "{}: the file is empty", file.path());
  const std::string foreign = foreign_format(file.begin(), "memory snapshot");
  CACHALOT_REQUIRE(foreign.empty(), "{}: {}", file.path(), foreign);
  CACHALOT_REQUIRE(!looks_like_trace(file.begin()),
                   "{}: is an allocation trace, not a memory snapshot: `cachalot replay` takes traces", file.path());
  CACHALOT_REQUIRE(is_snapshot(file), "{}: neither a pickle nor JSON: it begins with {}", file.path(),
                   fmt::to_string(Quoted{{reinterpret_cast<const char*>(&*first), 1}}));
}

TorchSnapshot read_snapshot(InputFile file) { return SnapshotReader(std::move(file)).read(); }

}  // namespace cachalot::tools
