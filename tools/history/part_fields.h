// The fields of a snapshot's dicts, checked. What reads snapshots builds upon it.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "cachalot/errors.h"
#include "tools/history/history.h"
#include "tools/history/parts.h"
#include "tools/history/tables.h"
#include "tools/memory_budget.h"

namespace cachalot::tools {

// The keys and values of snapshots that have a meaning, with numbers that are the same in each history's texts.
enum class Word : TextId {
  empty,
  // Actions, in the order of HistoryEvent::Action.
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  snapshot,
  oom,
  annotate,
  // Keys of an entry of a history.
  action,
  addr,
  device_free,
  size,
  stream,
  time_us,
  frames,
  forward_frames,
  compile_context,
  user_metadata,
  internal_metadata,
  pool_id,
  not_available,
  // Of a segment.
  device,
  address,
  total_size,
  segment_type,
  segment_pool_id,
  is_expandable,
  blocks,
  small,
  large,
  // Of a block.
  requested_size,
  state,
  active_allocated,
  active_pending_free,
  active_awaiting_free,
  inactive,
  allocated,
  active,
  // Of a frame.
  filename,
  name,
  line,
  fx_node_name,
  // Of an annotation.
  stage,
  start,
  end,
  // Of a snapshot.
  segments,
  device_traces,
  host_segments,
  host_traces,
  external_annotations,
  allocator_settings,
  conf,
  cachalot,
  // Of cachalot's own part.
  facts,
  total_bytes,
  free_bytes,
  limit_bytes,
  nccl_bytes,
  context_bytes,
  process_bytes,
  processes,
  pid,
  bytes,
  kCount,
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Word::kCount)> kWords = {
    "",
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "action",
    "addr",
    "device_free",
    "size",
    "stream",
    "time_us",
    "frames",
    "forward_frames",
    "compile_context",
    "user_metadata",
    "internal_metadata",
    "pool_id",
    "N/A",
    "device",
    "address",
    "total_size",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "blocks",
    "small",
    "large",
    "requested_size",
    "state",
    "active_allocated",
    "active_pending_free",
    "active_awaiting_free",
    "inactive",
    "allocated",
    "active",
    "filename",
    "name",
    "line",
    "fx_node_name",
    "stage",
    "START",
    "END",
    "segments",
    "device_traces",
    "host_segments",
    "host_traces",
    "external_annotations",
    "allocator_settings",
    "PYTORCH_CUDA_ALLOC_CONF",
    "cachalot",
    "facts",
    "total_bytes",
    "free_bytes",
    "limit_bytes",
    "nccl_bytes",
    "context_bytes",
    "process_bytes",
    "processes",
    "pid",
    "bytes",
};

inline std::string_view text_of(Word word) { return kWords[static_cast<std::size_t>(word)]; }

using Pairs = std::vector<Part>;  // keys and values in turn

class PartFields {
 public:
  static constexpr std::size_t kLongestText = 4096;  // of what is kept; longer ones are cut

  explicit PartFields(std::size_t memory_limit);

  MemoryBudget& budget() { return budget_; }
  Parts& parts() { return parts_; }
  // Each throws InvalidArgument for what breaks a rule of snapshots.
  Part text(std::string_view text, std::size_t longest = kLongestText);

 protected:
  static constexpr std::uint64_t kMostDevices = 1 << 16;
  struct Where {  // what is read, for messages
    static constexpr std::size_t kWhole = std::numeric_limits<std::size_t>::max();
    const char* what = "the snapshot";
    std::size_t index = kWhole;
  };

  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    if (holds) [[likely]]
      return;
    refuse(fmt::format(rule, std::forward<Args>(args)...));
  }

  std::uint64_t natural(Part value, const char* key, std::uint64_t most) const;
  std::uint64_t bytes(Part value, const char* key) const;
  Address address(Part value, const char* key) const;
  std::uint16_t stream(Part value);
  std::uint16_t pool(Part value);
  TextId text_id(Part value, const char* key) const;
  // nullptr: the key is not there.
  static const Part* find(const Pairs& pairs, Word word);
  static bool has(const Container& dict, Word word) { return find(dict.parts, word) != nullptr; }

  // What cachalot adds when it writes a snapshot out of memory.
  void take_facts(Part value);

  MemoryBudget budget_;
  Parts parts_;
  History history_;
  Where where_;

 private:
  [[noreturn]] void refuse(std::string_view why) const;
  DeviceFacts facts_of(const Pairs& pairs);
  void add_processes(Part value, DeviceFacts& facts);
};

}  // namespace cachalot::tools
