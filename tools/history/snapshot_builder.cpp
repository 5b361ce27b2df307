#include "tools/history/snapshot_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cachalot/caching_allocator.h"
#include "tools/base/quoted.h"
#include "tools/base/text_layout.h"
#include "tools/history/address_map.h"
#include "tools/history/history.h"

namespace cachalot::tools {
namespace {

constexpr Part::Kind kContainer = Part::Kind::container;

// PyTorch has -1, as a number without a sign, where Python does not know the line.
std::uint32_t line_number(std::optional<std::uint64_t> line) {
  if (!line || *line > std::numeric_limits<std::int64_t>::max()) return 0;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(*line, std::numeric_limits<std::uint32_t>::max()));
}

Part gone() { return Part::of_id(Part::Kind::gone, 0); }

// --- metadata of users, as JSON

constexpr int kMostLevels = 16;
constexpr std::size_t kMostJsonValues = 256;
constexpr std::size_t kBytesOfAValue = 16;  // a longer text counts as several values

class MetadataJson {
 public:
  MetadataJson(Parts& parts, const TextTable& texts) : parts_(parts), texts_(texts) {}

  nlohmann::ordered_json of(Part value, int levels) {  // NOLINT(misc-no-recursion): kMostLevels
    value = parts_.resolved(value);
    if (++values_ > kMostJsonValues || levels == 0) return "...";
    switch (value.kind()) {
      case Part::Kind::none:
        return nullptr;
      case Part::Kind::boolean:
        return *value.boolean();
      case Part::Kind::integer:
      case Part::Kind::natural:
        if (const auto natural = value.natural()) return *natural;
        return *value.integer();
      case Part::Kind::real:
        return value.real();
      case Part::Kind::text:
        return std::string(counted(texts_[value.id()]));
      case Part::Kind::metadata:
        return nlohmann::ordered_json::parse(counted(texts_[value.id()]), nullptr, /*allow_exceptions=*/false);
      case Part::Kind::container:
        return of_container(*parts_.find(value), levels);
      default:
        return "...";
    }
  }

 private:
  std::string_view counted(std::string_view text) {
    values_ += text.size() / kBytesOfAValue;
    return text;
  }

  nlohmann::ordered_json of_container(const Container& container, int levels) {  // NOLINT(misc-no-recursion)
    if (container.kind == Container::Kind::dict) return of_dict(container, levels);
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Part part : container.parts) {
      if (values_ > kMostJsonValues) break;
      list.push_back(of(part, levels - 1));
    }
    return list;
  }

  nlohmann::ordered_json of_dict(const Container& dict, int levels) {  // NOLINT(misc-no-recursion)
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i + 1 < dict.parts.size() && values_ <= kMostJsonValues; i += 2) {
      const nlohmann::ordered_json key = of(dict.parts[i], levels - 1);
      object[key.is_string() ? key.get<std::string>() : text_of(key)] = of(dict.parts[i + 1], levels - 1);
    }
    return object;
  }

  Parts& parts_;
  const TextTable& texts_;
  std::size_t values_ = 0;
};

// Returns the value as JSON on one line. Values nested deeper than kMostLevels and those after kMostJsonValues are replaced
// by "...": a file may name one part a thousand times, and that part another one.
std::string metadata_json(Parts& parts, const TextTable& texts, Part value) {
  return text_of(MetadataJson(parts, texts).of(value, kMostLevels));
}

}  // namespace

// --- lists ------------------------------------------------------------------------------------------------------------

Container::Kind SnapshotBuilder::kind_of_list(Part first) {
  if (first.kind() == Part::Kind::frame) return Container::Kind::frames;
  const Container* const dict = parts_.find(first);
  if (dict == nullptr || dict->kind != Container::Kind::dict) return Container::Kind::list;
  if (has(*dict, "filename"_word) && has(*dict, "name"_word)) return Container::Kind::frames;
  if (has(*dict, "action"_word) && has(*dict, "size"_word)) return Container::Kind::events;
  if (has(*dict, "segment_type"_word) && has(*dict, "blocks"_word)) return Container::Kind::segments;
  if (has(*dict, "stage"_word) && has(*dict, "name"_word)) return Container::Kind::stages;
  const bool has_state = has(*dict, "state"_word) || (has(*dict, "allocated"_word) && has(*dict, "active"_word));
  return has_state && has(*dict, "size"_word) ? Container::Kind::blocks : Container::Kind::list;
}

void SnapshotBuilder::begin_store(Container& list) {
  const auto begin = [&](auto& stores) {
    budget_.charge(2 * sizeof(stores.front()));
    list.store = static_cast<std::uint32_t>(stores.size());
    stores.emplace_back();
  };
  if (list.kind == Container::Kind::events) begin(events_);
  if (list.kind == Container::Kind::segments) begin(segments_);
  if (list.kind == Container::Kind::blocks) begin(block_lists_);
  if (list.kind == Container::Kind::stages) begin(stages_);
}

void SnapshotBuilder::append(Part list, Part item) {
  Container* const into = parts_.find(list);
  require(into != nullptr && into->kind != Container::Kind::dict,
          "its values go into {}, which is none of the right kind",
          into == nullptr ? parts_.resolved(list).kind_name() : "a dict");
  item = parts_.resolved(item);
  if (into->kind == Container::Kind::list && into->parts.empty()) {
    into->kind = kind_of_list(item);
    begin_store(*into);
  }
  switch (into->kind) {
    case Container::Kind::frames:
      if (item.kind() == Part::Kind::frame) return parts_.push(*into, item);  // most were named before
      item = frame(item);
      require(parts_.find(list) == into, "a frame holds its list");
      return parts_.push(*into, item);
    case Container::Kind::events:
      return take_event(list, item);
    case Container::Kind::segments:
      return take_into(segments_, "segment", &SnapshotBuilder::segment, list, item);
    case Container::Kind::blocks:
      return take_into(block_lists_, "block", &SnapshotBuilder::block, list, item);
    case Container::Kind::stages:
      return take_into(stages_, "annotation", &SnapshotBuilder::stage, list, item);
    default:
      parts_.push(*into, item);
  }
}

void SnapshotBuilder::set(Part dict, Part key, Part value) {
  Container* const into = parts_.find(dict);
  require(into != nullptr && into->kind == Container::Kind::dict, "its values go into {}, which is no dict",
          into == nullptr ? parts_.resolved(dict).kind_name() : "a list");
  parts_.push(*into, key);
  parts_.push(*into, value);
}

Container* SnapshotBuilder::list_of(Part value, Container::Kind kind, const char* key) {
  value = parts_.resolved(value);
  Container* list = parts_.find(value);
  require(list != nullptr && list->kind != Container::Kind::dict, "'{}' is {}, not a list", key,
          list == nullptr ? value.kind_name() : "a dict");
  if (list->kind == Container::Kind::list) {
    if (list->parts.empty()) return nullptr;
    Pairs items;
    parts_.take(*list, items);
    list->kind = kind;
    begin_store(*list);
    for (const Part item : items) append(value, item);
    list = parts_.find(value);
  }
  require(list != nullptr && list->kind == kind, "'{}' is a list of something else", key);
  return list;
}

void SnapshotBuilder::open(Part dict, Pairs& pairs) {
  dict = parts_.resolved(dict);
  Container* const container = parts_.find(dict);
  require(container != nullptr && container->kind == Container::Kind::dict, "it is {}, not a dict",
          container == nullptr ? dict.kind_name() : "a list");
  pairs.swap(spare_);
  parts_.take(*container, pairs);
  for (std::size_t i = 1; i < pairs.size(); i += 2) pairs[i] = parts_.resolved(pairs[i]);
}

void SnapshotBuilder::finish_dict(Part dict, Pairs& pairs, Part meaning) {
  // A list of frames under a key that is not known may stand under a known one later.
  for (std::size_t i = 1; i < pairs.size(); i += 2) {
    const Container* const list = parts_.find(pairs[i]);
    if (list != nullptr && list->kind == Container::Kind::frames) stack(pairs[i], "frames");
  }
  parts_.close_all(pairs);
  parts_.close(dict, meaning);
  spare_.swap(pairs);
}

void SnapshotBuilder::take_event(Part list, Part item) {
  where_ = {"the history's entry", events_[parts_.find(list)->store].size()};
  Pairs pairs;
  open(item, pairs);
  HistoryEvent taken;
  const bool is_known = event(pairs, taken);
  const Container* const into = parts_.find(list);
  require(into != nullptr && into->kind == Container::Kind::events, "it holds its history");
  if (is_known) {
    events_[into->store].add(taken, budget_);
  } else {
    ++history_.unknown_actions;
  }
  finish_dict(item, pairs, gone());
}

template <typename T>
void SnapshotBuilder::take_into(std::vector<std::vector<T>>& lists, const char* what,
                                T (SnapshotBuilder::*read)(const Pairs&), Part list, Part item) {
  const std::uint32_t store = parts_.find(list)->store;
  where_ = {what, lists[store].size()};
  Pairs pairs;
  open(item, pairs);
  const T taken = (this->*read)(pairs);
  budget_.charge(2 * sizeof(T));
  lists[store].push_back(taken);
  finish_dict(item, pairs, gone());
}

// --- the meanings of dicts: frames ------------------------------------------------------------------------------------

Part SnapshotBuilder::frame(Part item) {
  require(item.kind() == kContainer, "a frame is {}, not a dict", item.kind_name());
  Pairs pairs;
  open(item, pairs);
  const Part* const file = find(pairs, "filename"_word);
  const Part* const name = find(pairs, "name"_word);
  require(file != nullptr && name != nullptr, "a frame has no '{}'", file == nullptr ? "filename" : "name");
  StackFrame taken{.file = with_slashes(text_id(*file, "filename")), .function = text_id(*name, "name")};
  if (const Part* line = find(pairs, "line"_word)) {
    taken.line = line_number(line->natural());
  }
  const Part* const node = find(pairs, "fx_node_name"_word);
  if (node != nullptr && node->is_text()) taken.node = node->id();
  const Part meaning = Part::of_id(Part::Kind::frame, add_frame(taken));
  finish_dict(item, pairs, meaning);
  return meaning;
}

// Paths of Windows are read as those of other systems, so that rules know PyTorch's own files by them.
TextId SnapshotBuilder::with_slashes(TextId path) {
  const std::string_view text = history_.texts[path];
  if (text.size() < 3 || text[1] != ':' || text[2] != '\\') return path;
  std::string slashes(text);
  std::ranges::replace(slashes, '\\', '/');
  return history_.texts.add(slashes);
}

FrameId SnapshotBuilder::add_frame(const StackFrame& frame) {
  const std::size_t known = history_.stacks.frame_count();
  const FrameId id = history_.stacks.add_frame(frame);
  if (id >= known) budget_.charge(2 * sizeof(StackFrame) + 4 * sizeof(FrameId));
  return id;
}

StackId SnapshotBuilder::stack(Part frames, const char* key) {
  frames = parts_.resolved(frames);
  if (frames.kind() == Part::Kind::stack) return frames.id();
  if (frames.kind() == Part::Kind::none) return 0;
  const Container* const list = list_of(frames, Container::Kind::frames, key);
  frames_.clear();
  for (std::size_t i = 0; list != nullptr && i < list->parts.size(); ++i) frames_.push_back(list->parts[i].id());
  return close_stack(frames);
}

// Frames as others, or lines of a traceback, the oldest call first.
StackId SnapshotBuilder::forward_stack(Part frames) {
  frames = parts_.resolved(frames);
  const Container* const list = parts_.find(frames);
  const bool is_traceback = list != nullptr && list->kind == Container::Kind::list && !list->parts.empty() &&
                            std::ranges::all_of(list->parts, &Part::is_text);
  if (!is_traceback) return stack(frames, "forward_frames");
  frames_.clear();
  for (std::size_t i = list->parts.size(); i > 0; --i) {
    const TracebackCall call = call_of_traceback(history_.texts[list->parts[i - 1].id()]);
    frames_.push_back(
        add_frame({.file = text(call.file).id(), .function = text(call.function).id(), .line = call.line}));
  }
  return close_stack(frames);
}

StackId SnapshotBuilder::close_stack(Part frames) {
  const std::size_t known = history_.stacks.size();
  const StackId id = history_.stacks.add(frames_);
  if (id >= known) budget_.charge(2 * frames_.size() * sizeof(FrameId) + 8 * sizeof(StackId));
  parts_.close(frames, Part::of_id(Part::Kind::stack, id));
  return id;
}

TextId SnapshotBuilder::metadata(Part value) {
  value = parts_.resolved(value);
  if (value.is_text() || value.kind() == Part::Kind::metadata) return value.id();
  if (value.kind() == Part::Kind::none) return 0;
  const std::string json = metadata_json(parts_, history_.texts, value);  // has bounds of its own: cut JSON is invalid
  const TextId id = text(json, json.size()).id();
  if (value.kind() == kContainer) parts_.close(value, Part::of_id(Part::Kind::metadata, id));
  return id;
}

// The meanings of a snapshot's dicts: entries of a history, segments, blocks, annotations, and the whole.
namespace {

constexpr Address kUnknownAddress = std::numeric_limits<Address>::max();

Word word_of(TextId id) { return static_cast<Word>(std::min<std::size_t>(id, kWords.size())); }

}  // namespace

// --- entries of a history ---------------------------------------------------------------------------------------------

// Returns false for an action that is not known: a newer PyTorch's.
bool SnapshotBuilder::event(const Pairs& pairs, HistoryEvent& event) {
  EventDetails details;
  bool is_known = false;
  const Part* at[3] = {};  // address, size, stream
  const Part* action = nullptr;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pairs[i].is_text()) continue;
    const Part& value = pairs[i + 1];
    switch (const Word word = word_of(pairs[i].id())) {
      case "action"_word:
        action = &value;
        break;
      case "addr"_word:
      case "device_free"_word:
        at[0] = &value;
        break;
      case "size"_word:
        at[1] = &value;
        break;
      case "stream"_word:
        at[2] = &value;
        break;
      case "time_us"_word:
        event.time_us = value.integer().value_or(0);
        break;
      case "frames"_word:
        event.stack = stack(value, "frames");
        break;
      case "pool_id"_word:
        event.pool = pool(value);
        break;
      default:
        add_detail(word, value, details);
    }
  }
  require(action != nullptr, "'action' is missing");
  set_action(*action, event, is_known);
  if (!is_known) return false;
  const bool is_oom = event.action == HistoryEvent::Action::oom;
  require(at[0] != nullptr, "'{}' is missing", is_oom ? "device_free" : "addr");
  require(at[1] != nullptr, "'size' is missing");
  require(at[2] != nullptr, "'stream' is missing");
  event.address = address(*at[0], is_oom ? "device_free" : "addr");
  event.bytes = bytes(*at[1], "size");
  event.stream = stream(*at[2]);
  const std::size_t known = history_.details.size();
  event.details = history_.details.add(details);
  if (history_.details.size() > known) budget_.charge(3 * sizeof(EventDetails));
  return true;
}

void SnapshotBuilder::add_detail(Word word, Part value, EventDetails& details) {
  switch (word) {
    case "forward_frames"_word:
      details.forward_stack = forward_stack(value);
      return;
    case "compile_context"_word:
      if (value.is_text() && word_of(value.id()) != "N/A"_word) details.compile_context = value.id();
      return;
    case "user_metadata"_word:
      details.user_metadata = metadata(value);
      return;
    case "internal_metadata"_word:
      details.internal_metadata = metadata(value);
      return;
    default:
      return;
  }
}

void SnapshotBuilder::set_action(Part value, HistoryEvent& event, bool& is_known) {
  const TextId id = text_id(value, "action");
  is_known = id >= static_cast<TextId>("alloc"_word) && id <= static_cast<TextId>("annotate"_word);
  if (is_known) event.action = static_cast<HistoryEvent::Action>(id - static_cast<TextId>("alloc"_word));
}

// --- segments ---------------------------------------------------------------------------------------------------------

SnapshotBuilder::DeviceSegment SnapshotBuilder::segment(const Pairs& pairs) {
  const auto field = [&](Word word) {
    const Part* const part = find(pairs, word);
    require(part != nullptr, "'{}' is missing", text_of(word));
    return *part;
  };
  require(find(pairs, "segments"_word) == nullptr, "it is a snapshot itself: a file has one, and no list of them");
  DeviceSegment taken;
  HistorySegment& segment = taken.segment;
  const Part& device = field("device"_word);
  taken.device = device.integer() == kHost ? kHost : static_cast<int>(natural(device, "device", kMostDevices));
  segment.address = address(field("address"_word), "address");
  segment.bytes = bytes(field("total_size"_word), "total_size");
  segment.stream = stream(field("stream"_word));
  const TextId type = text_id(field("segment_type"_word), "segment_type");
  require(word_of(type) == "small"_word || word_of(type) == "large"_word, "segment_type {} is neither small nor large",
          Quoted{history_.texts[type]});
  segment.is_small = word_of(type) == "small"_word;
  if (const Part* id = find(pairs, "segment_pool_id"_word)) segment.pool = pool(*id);
  if (const Part* expandable = find(pairs, "is_expandable"_word)) {
    segment.is_expandable = expandable->boolean().value_or(false);
  }
  if (const Part* frames = find(pairs, "frames"_word)) segment.stack = stack(*frames, "frames");
  bytes_in_all_ += segment.bytes;
  require(bytes_in_all_ < kMostBytesInAll, "the segments have more than {} bytes in all", kMostBytesInAll);
  const Part* const asleep = find(pairs, "asleep_size"_word);
  taken.is_asleep = asleep != nullptr && natural(*asleep, "asleep_size", segment.bytes) > 0;
  if (!taken.is_asleep) add_blocks(field("blocks"_word), segment);
  return taken;
}

void SnapshotBuilder::add_blocks(Part blocks, HistorySegment& segment) {
  segment.first_block = blocks_.size();
  const Where where = where_;
  const Container* const list = list_of(blocks, Container::Kind::blocks, "blocks");
  where_ = where;
  if (list == nullptr) return;
  std::uint64_t left = segment.bytes;
  Address next = segment.address;  // where the block begins, if the file does not say
  for (HistoryBlock& block : block_lists_[list->store]) {
    require(block.bytes <= left, "its blocks have more bytes than the segment's {}", segment.bytes);
    left -= block.bytes;
    if (block.address == kUnknownAddress) block.address = next;
    next = block.address + block.bytes;
    blocks_.push_back(block);
  }
  segment.block_count = blocks_.size() - segment.first_block;
  std::vector<HistoryBlock>().swap(block_lists_[list->store]);
}

HistoryBlock SnapshotBuilder::block(const Pairs& pairs) {
  HistoryBlock block;
  block.address = kUnknownAddress;
  if (const Part* at = find(pairs, "address"_word)) block.address = address(*at, "address");
  const Part* const size = find(pairs, "size"_word);
  require(size != nullptr, "'size' is missing");
  block.bytes = bytes(*size, "size");
  block.requested_bytes = block.bytes;
  if (const Part* requested = find(pairs, "requested_size"_word)) {
    block.requested_bytes = bytes(*requested, "requested_size");
  }
  if (const Part* state_of = find(pairs, "state"_word)) {
    block.state = state(*state_of);
  } else {  // of pinned host memory
    const Part* const allocated = find(pairs, "allocated"_word);
    const Part* const active = find(pairs, "active"_word);
    require(allocated != nullptr && active != nullptr, "'state' is missing");
    const bool is_active = active->boolean().value_or(false);
    block.state = allocated->boolean().value_or(false) ? HistoryBlock::State::allocated
                  : is_active                          ? HistoryBlock::State::pending_free
                                                       : HistoryBlock::State::free;
  }
  if (const Part* owner = find(pairs, "owner"_word)) block.owner = text_id(*owner, "owner");
  if (const Part* kind = find(pairs, "owner_kind"_word)) block.owner_kind = text_id(*kind, "owner_kind");
  EventDetails details;
  if (const Part* frames = find(pairs, "frames"_word)) block.stack = stack(*frames, "frames");
  for (const Word word :
       {"forward_frames"_word, "compile_context"_word, "user_metadata"_word, "internal_metadata"_word}) {
    if (const Part* value = find(pairs, word)) add_detail(word, *value, details);
  }
  block.details = history_.details.add(details);
  return block;
}

HistoryBlock::State SnapshotBuilder::state(Part value) const {
  const TextId id = text_id(value, "state");
  switch (word_of(id)) {
    case "active_allocated"_word:
      return HistoryBlock::State::allocated;
    case "active_pending_free"_word:
    case "active_awaiting_free"_word:  // so PyTorch called it before 2.1, and its documentation still does
      return HistoryBlock::State::pending_free;
    default:
      require(word_of(id) == "inactive"_word, "state {} is none of active_allocated, active_pending_free and inactive",
              Quoted{history_.texts[id]});
      return HistoryBlock::State::free;
  }
}

// --- annotations ------------------------------------------------------------------------------------------------------

StageMark SnapshotBuilder::stage(const Pairs& pairs) {
  StageMark mark;
  const Part* const name = find(pairs, "name"_word);
  const Part* const stage = find(pairs, "stage"_word);
  require(name != nullptr && stage != nullptr, "'{}' is missing", name == nullptr ? "name" : "stage");
  mark.name = text_id(*name, "name");
  const TextId id = text_id(*stage, "stage");
  require(word_of(id) == "START"_word || word_of(id) == "END"_word, "stage {} is neither START nor END",
          Quoted{history_.texts[id]});
  mark.begins = word_of(id) == "START"_word;
  if (const Part* time = find(pairs, "time_us"_word)) mark.time_us = time->integer().value_or(0);
  if (const Part* device = find(pairs, "device"_word)) {
    mark.device = static_cast<int>(natural(*device, "device", kMostDevices));
  }
  return mark;
}

// The end of a snapshot: its lists, which are read by then, become a history.
namespace {

// Gives each annotation (PyTorch's annotate, since 2.14) the details that its allocation has from then on: those it had, with
// the new metadata. Takes time only where a history has annotations.
void complete_annotations(History& history, DeviceHistory& device) {
  using EventAction = HistoryEvent::Action;
  if (std::ranges::find(device.events, EventAction::annotate, &HistoryEvent::action) == device.events.end()) return;
  AddressMap details;  // of live allocations; those from before the events have none
  for (HistoryEvent& event : device.events) {
    if (event.action == EventAction::alloc) details.set(event.address, event.details);
    if (event.action == EventAction::free_requested || event.action == EventAction::free_completed)
      details.erase(event.address);
    if (event.action != EventAction::annotate) continue;
    const std::uint32_t before = details.find(event.address);
    EventDetails merged = history.details[before == AddressMap::kNone ? 0 : before];
    const EventDetails& added = history.details[event.details];
    if (added.user_metadata != 0) merged.user_metadata = added.user_metadata;
    if (added.internal_metadata != 0) merged.internal_metadata = added.internal_metadata;
    event.details = history.details.add(merged);
    details.set(event.address, event.details);
  }
}

}  // namespace

History SnapshotBuilder::finish(Part root) {
  where_ = {};
  const Container* const whole = parts_.find(root);
  require(whole != nullptr, "it is {}, not a dict or a list of segments", root.kind_name());
  if (whole->kind == Container::Kind::dict) {
    take_root(Pairs(whole->parts));
  } else {  // torch.cuda.memory_snapshot()
    take_segments(root, "segments", devices_);
  }
  parts_.clear();
  for (auto& [store, device] : traces_) device->events = events_[store].take();
  for (auto& [number, device] : devices_) {
    complete_annotations(history_, device);
    complete_pools(device);
  }
  for (auto& [number, device] : host_) complete_annotations(history_, device);
  move_devices(devices_, history_.devices);
  move_devices(host_, history_.host);
  return std::move(history_);
}

void SnapshotBuilder::take_root(const Pairs& pairs) {
  const Part* const segments = find(pairs, "segments"_word);
  require(segments != nullptr || find(pairs, "unknown_actions"_word) == nullptr, "{}", kTablesComeFirst);
  const Part* const first = pairs.empty() ? nullptr : &pairs.front();
  require(segments != nullptr, "'segments' is missing{}",
          first != nullptr && first->is_text()
              ? fmt::format(": the first key is {}", Quoted{history_.texts[first->id()]})
              : "");
  take_segments(*segments, "segments", devices_);
  if (const Part* traces = find(pairs, "device_traces"_word)) take_traces(*traces, "device_traces", devices_);
  if (const Part* of_host = find(pairs, "host_segments"_word)) take_segments(*of_host, "host_segments", host_);
  if (const Part* of_host = find(pairs, "host_traces"_word)) take_traces(*of_host, "host_traces", host_);
  if (const Part* annotations = find(pairs, "external_annotations"_word)) take_stages(*annotations);
  if (const Part* settings = find(pairs, "allocator_settings"_word)) take_settings(*settings);
  if (const Part* own = find(pairs, "cachalot"_word)) take_facts(*own);
}

void SnapshotBuilder::take_segments(Part value, const char* key, Devices& devices) {
  const Container* const list = parts_.find(parts_.resolved(value));
  if (list != nullptr && list->kind == Container::Kind::blocks) {  // pinned host memory: each block by itself
    DeviceHistory& device = devices[0];
    for (const HistoryBlock& block : block_lists_[list->store]) {
      device.segments.push_back({.address = block.address,
                                 .bytes = block.bytes,
                                 .first_block = device.blocks.size(),
                                 .block_count = 1,
                                 .stack = block.stack});
      device.blocks.push_back(block);
    }
    return;
  }
  const Container* const taken = list_of(value, Container::Kind::segments, key);
  where_ = {};
  if (taken == nullptr) return;
  for (const DeviceSegment& of_device : segments_[taken->store]) {
    require(of_device.device != kHost || &devices == &host_, "a segment of '{}' has the device -1", key);
    DeviceHistory& device = devices[std::max(of_device.device, 0)];
    if (of_device.is_asleep) {
      device.asleep.push_back(of_device.segment);
      continue;
    }
    device.segments.push_back(of_device.segment);
    device.segments.back().first_block = device.blocks.size();
    const auto first = blocks_.begin() + static_cast<std::ptrdiff_t>(of_device.segment.first_block);
    device.blocks.insert(device.blocks.end(), first,
                         first + static_cast<std::ptrdiff_t>(of_device.segment.block_count));
  }
}

// A list for each device, or, of the host, the entries themselves.
void SnapshotBuilder::take_traces(Part value, const char* key, Devices& devices) {
  value = parts_.resolved(value);
  const Container* const lists = parts_.find(value);
  require(lists != nullptr && lists->kind != Container::Kind::dict, "'{}' is {}, not a list", key,
          lists == nullptr ? value.kind_name() : "a dict");
  if (lists->kind == Container::Kind::events) return traces_of(value, key, devices[0]);
  require(lists->kind == Container::Kind::list, "'{}' is a list of something else", key);
  require(lists->parts.size() <= kMostDevices, "histories of {} devices: at most {}", lists->parts.size(),
          kMostDevices);
  const Pairs items = lists->parts;
  for (std::size_t device = 0; device < items.size(); ++device) {
    where_ = {"the history of device", device};
    if (list_of(items[device], Container::Kind::events, key) != nullptr) {
      traces_of(items[device], key, devices[static_cast<int>(device)]);
    }
  }
  where_ = {};
}

void SnapshotBuilder::traces_of(Part list, const char* key, DeviceHistory& device) {
  const Container* const events = list_of(list, Container::Kind::events, key);
  const auto [known, is_new] = traces_.try_emplace(events->store, &device);
  require(is_new || known->second == &device, "two devices have one history");
}

void SnapshotBuilder::take_stages(Part value) {
  const Container* const list = list_of(value, Container::Kind::stages, "external_annotations");
  where_ = {};
  if (list == nullptr) return;
  history_.stages = std::move(stages_[list->store]);
  std::ranges::stable_sort(history_.stages, {}, &StageMark::time_us);
}

void SnapshotBuilder::take_settings(Part value) {
  const Container* const settings = parts_.find(parts_.resolved(value));
  if (settings == nullptr || settings->kind != Container::Kind::dict) return;
  const Part* const conf = find(settings->parts, "PYTORCH_CUDA_ALLOC_CONF"_word);
  if (conf != nullptr && conf->is_text()) history_.settings = history_.texts[conf->id()];
}

void SnapshotBuilder::move_devices(Devices& from, std::vector<DeviceHistory>& to) {
  for (auto& [number, device] : from) {
    if (device.events.empty() && device.segments.empty() && device.asleep.empty()) continue;
    device.device = number;
    to.push_back(std::move(device));
  }
}

}  // namespace cachalot::tools
