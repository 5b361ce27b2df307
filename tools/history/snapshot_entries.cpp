// What the dicts of a snapshot mean: entries of a history, segments, blocks, annotations, and the whole.
#include <algorithm>
#include <limits>
#include <utility>

#include "cachalot/caching_allocator.h"
#include "tools/history/snapshot_builder.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

constexpr Address kUnknownAddress = std::numeric_limits<Address>::max();

template <typename Id>
Word word_of(Id id) {
  return id < static_cast<TextId>(Word::kCount) ? static_cast<Word>(id) : Word::kCount;
}

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
      case Word::action:
        action = &value;
        break;
      case Word::addr:
      case Word::device_free:
        at[0] = &value;
        break;
      case Word::size:
        at[1] = &value;
        break;
      case Word::stream:
        at[2] = &value;
        break;
      case Word::time_us:
        event.time_us = value.integer().value_or(0);
        break;
      case Word::frames:
        event.stack = stack(value, "frames");
        break;
      case Word::pool_id:
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
    case Word::forward_frames:
      details.forward_stack = forward_stack(value);
      return;
    case Word::compile_context:
      if (value.is_text() && word_of(value.id()) != Word::not_available) details.compile_context = value.id();
      return;
    case Word::user_metadata:
      details.user_metadata = metadata(value);
      return;
    case Word::internal_metadata:
      details.internal_metadata = metadata(value);
      return;
    default:
      return;
  }
}

void SnapshotBuilder::set_action(Part value, HistoryEvent& event, bool& is_known) {
  const TextId id = text_id(value, "action");
  is_known = id >= static_cast<TextId>(Word::alloc) && id <= static_cast<TextId>(Word::annotate);
  if (is_known) event.action = static_cast<HistoryEvent::Action>(id - static_cast<TextId>(Word::alloc));
}

// --- segments ---------------------------------------------------------------------------------------------------------

SnapshotBuilder::DeviceSegment SnapshotBuilder::segment(const Pairs& pairs) {
  const auto field = [&](Word word) {
    const Part* const part = find(pairs, word);
    require(part != nullptr, "'{}' is missing", text_of(word));
    return *part;
  };
  DeviceSegment taken;
  HistorySegment& segment = taken.segment;
  const Part& device = field(Word::device);
  taken.device = device.integer() == kHost ? kHost : static_cast<int>(natural(device, "device", kMostDevices));
  segment.address = address(field(Word::address), "address");
  segment.bytes = bytes(field(Word::total_size), "total_size");
  segment.stream = stream(field(Word::stream));
  const TextId type = text_id(field(Word::segment_type), "segment_type");
  require(word_of(type) == Word::small || word_of(type) == Word::large, "segment_type {} is neither small nor large",
          Quoted{history_.texts[type]});
  segment.is_small = word_of(type) == Word::small;
  if (const Part* id = find(pairs, Word::segment_pool_id)) segment.pool = pool(*id);
  if (const Part* expandable = find(pairs, Word::is_expandable)) {
    segment.is_expandable = expandable->boolean().value_or(false);
  }
  if (const Part* frames = find(pairs, Word::frames)) segment.stack = stack(*frames, "frames");
  bytes_in_all_ += segment.bytes;
  require(bytes_in_all_ < kMostBytesInAll, "the segments have more than {} bytes in all", kMostBytesInAll);
  add_blocks(field(Word::blocks), segment);
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
  if (const Part* at = find(pairs, Word::address)) block.address = address(*at, "address");
  const Part* const size = find(pairs, Word::size);
  require(size != nullptr, "'size' is missing");
  block.bytes = bytes(*size, "size");
  block.requested_bytes = block.bytes;
  if (const Part* requested = find(pairs, Word::requested_size)) {
    block.requested_bytes = bytes(*requested, "requested_size");
  }
  if (const Part* state_of = find(pairs, Word::state)) {
    block.state = state(*state_of);
  } else {  // of pinned host memory
    const Part* const allocated = find(pairs, Word::allocated);
    const Part* const active = find(pairs, Word::active);
    require(allocated != nullptr && active != nullptr, "'state' is missing");
    const bool is_active = active->boolean().value_or(false);
    block.state = allocated->boolean().value_or(false) ? HistoryBlock::State::allocated
                  : is_active                          ? HistoryBlock::State::pending_free
                                                       : HistoryBlock::State::free;
  }
  EventDetails details;
  if (const Part* frames = find(pairs, Word::frames)) block.stack = stack(*frames, "frames");
  for (const Word word : {Word::forward_frames, Word::compile_context, Word::user_metadata, Word::internal_metadata}) {
    if (const Part* value = find(pairs, word)) add_detail(word, *value, details);
  }
  block.details = history_.details.add(details);
  return block;
}

HistoryBlock::State SnapshotBuilder::state(Part value) const {
  const TextId id = text_id(value, "state");
  switch (word_of(id)) {
    case Word::active_allocated:
      return HistoryBlock::State::allocated;
    case Word::active_pending_free:
    case Word::active_awaiting_free:  // so PyTorch called it before 2.1, and its documentation still does
      return HistoryBlock::State::pending_free;
    default:
      require(word_of(id) == Word::inactive, "state {} is none of active_allocated, active_pending_free and inactive",
              Quoted{history_.texts[id]});
      return HistoryBlock::State::free;
  }
}

// --- annotations ------------------------------------------------------------------------------------------------------

StageMark SnapshotBuilder::stage(const Pairs& pairs) {
  StageMark mark;
  const Part* const name = find(pairs, Word::name);
  const Part* const stage = find(pairs, Word::stage);
  require(name != nullptr && stage != nullptr, "'{}' is missing", name == nullptr ? "name" : "stage");
  mark.name = text_id(*name, "name");
  const TextId id = text_id(*stage, "stage");
  require(word_of(id) == Word::start || word_of(id) == Word::end, "stage {} is neither START nor END",
          Quoted{history_.texts[id]});
  mark.begins = word_of(id) == Word::start;
  if (const Part* time = find(pairs, Word::time_us)) mark.time_us = time->integer().value_or(0);
  if (const Part* device = find(pairs, Word::device)) {
    mark.device = static_cast<int>(natural(*device, "device", kMostDevices));
  }
  return mark;
}

}  // namespace cachalot::tools
