// Makes a history of a snapshot's values, in the order in which they arrive: an entry of a history, a segment, a block, a
// frame or an annotation is taken when it goes into its list, and does not stay.
//
// What a dict is, its keys tell: what its list is, the first item. So it does not matter in which order a file has
// its parts, nor where a pickle names what it had before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tools/history/history.h"
#include "tools/history/memory_budget.h"
#include "tools/history/parts.h"

namespace cachalot::tools {

// The error for JSON that convert wrote and another program has sorted.
inline constexpr const char* kTablesComeFirst =
    "the keys of a 'cachalot history' have another order than `cachalot convert` gives them: its tables must come "
    "before "
    "its devices";

class SnapshotBuilder : public PartFields {
 public:
  using PartFields::PartFields;

  // Each throws InvalidArgument for what breaks a rule of snapshots.
  void append(Part list, Part item);
  void set(Part dict, Part key, Part value);
  // The document is all there. Without path and format.
  History finish(Part root);

 private:
  static constexpr int kHost = -1;  // the device of pinned host memory
  struct DeviceSegment {
    int device = 0;
    HistorySegment segment;
    bool is_asleep = false;
  };
  static constexpr std::uint64_t kMostBytesInAll = std::uint64_t{1} << 62;

  // ---- lists
  Container::Kind kind_of_list(Part first);
  void begin_store(Container& list);
  // Makes a list of `kind` of one whose first item did not look like it; returns null if it has no item.
  Container* list_of(Part value, Container::Kind kind, const char* key);
  // Opens the dict: what it holds goes into `pairs`.
  void open(Part dict, Pairs& pairs);
  void finish_dict(Part dict, Pairs& pairs, Part meaning);
  void take_event(Part list, Part item);
  template <typename T>
  void take_into(std::vector<std::vector<T>>& lists, const char* what, T (SnapshotBuilder::*read)(const Pairs&),
                 Part list, Part item);

  // ---- the meanings of dicts
  Part frame(Part item);
  TextId with_slashes(TextId path);
  FrameId add_frame(const StackFrame& frame);
  StackId stack(Part frames, const char* key);
  StackId forward_stack(Part frames);
  StackId close_stack(Part frames);
  TextId metadata(Part value);
  bool event(const Pairs& pairs, HistoryEvent& event);
  void add_detail(Word word, Part value, EventDetails& details);
  void set_action(Part value, HistoryEvent& event, bool& is_known);
  DeviceSegment segment(const Pairs& pairs);
  void add_blocks(Part blocks, HistorySegment& segment);
  HistoryBlock block(const Pairs& pairs);
  HistoryBlock::State state(Part value) const;
  StageMark stage(const Pairs& pairs);

  // ---- the whole
  using Devices = std::map<int, DeviceHistory>;
  void take_root(const Pairs& pairs);
  void take_segments(Part value, const char* key, Devices& devices);
  void take_traces(Part value, const char* key, Devices& devices);
  void traces_of(Part list, const char* key, DeviceHistory& device);
  void take_stages(Part value);
  void take_settings(Part value);
  static void move_devices(Devices& from, std::vector<DeviceHistory>& to);

  std::vector<EventList> events_;  // by Container::store, as the others
  std::vector<std::vector<DeviceSegment>> segments_;
  std::vector<std::vector<HistoryBlock>> block_lists_;
  std::vector<std::vector<StageMark>> stages_;
  std::vector<HistoryBlock> blocks_;  // of all segments that were taken
  std::uint64_t bytes_in_all_ = 0;
  Pairs spare_;
  std::vector<FrameId> frames_;
  Devices devices_;
  Devices host_;
  std::map<std::uint32_t, DeviceHistory*> traces_;  // the owners of events, by their store
};

}  // namespace cachalot::tools
