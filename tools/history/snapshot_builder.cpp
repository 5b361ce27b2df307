#include "tools/history/snapshot_builder.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cachalot/caching_allocator.h"
#include "tools/history/traceback.h"
#include "tools/json_text.h"
#include "tools/quoted.h"

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

// Returns the value as JSON on one line. What nests deeper than kMostLevels and what comes after kMostJsonValues is replaced
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
  if (has(*dict, Word::filename) && has(*dict, Word::name)) return Container::Kind::frames;
  if (has(*dict, Word::action) && has(*dict, Word::size)) return Container::Kind::events;
  if (has(*dict, Word::segment_type) && has(*dict, Word::blocks)) return Container::Kind::segments;
  if (has(*dict, Word::stage) && has(*dict, Word::name)) return Container::Kind::stages;
  const bool has_state = has(*dict, Word::state) || (has(*dict, Word::allocated) && has(*dict, Word::active));
  return has_state && has(*dict, Word::size) ? Container::Kind::blocks : Container::Kind::list;
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

// --- what dicts mean: frames ------------------------------------------------------------------------------------------

Part SnapshotBuilder::frame(Part item) {
  if (item.kind() == Part::Kind::frame) return item;
  require(item.kind() == kContainer, "a frame is {}, not a dict", item.kind_name());
  Pairs pairs;
  open(item, pairs);
  const Part* const file = find(pairs, Word::filename);
  const Part* const name = find(pairs, Word::name);
  require(file != nullptr && name != nullptr, "a frame has no '{}'", file == nullptr ? "filename" : "name");
  StackFrame taken{.file = text_id(*file, "filename"), .function = text_id(*name, "name")};
  if (const Part* line = find(pairs, Word::line)) {
    taken.line = line_number(line->natural());
  }
  const Part* const node = find(pairs, Word::fx_node_name);
  if (node != nullptr && node->is_text()) taken.node = node->id();
  const Part meaning = Part::of_id(Part::Kind::frame, add_frame(taken));
  finish_dict(item, pairs, meaning);
  return meaning;
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
  const std::string json = metadata_json(parts_, history_.texts, value);  // has bounds of its own: cut, it were no JSON
  const TextId id = text(json, json.size()).id();
  if (value.kind() == kContainer) parts_.close(value, Part::of_id(Part::Kind::metadata, id));
  return id;
}

}  // namespace cachalot::tools
