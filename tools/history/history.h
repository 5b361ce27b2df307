// The data of a file on a program's GPU memory, in any format: the events, the memory that lived at the end, the place in
// the program of each, and the facts of the device. A plain value, which readers make and analyses take.
//
// A history is the end of a program's events: recording begins when a program asks for it, and PyTorch keeps the newest
// entries alone. Timeline rebuilds earlier allocations.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/device.h"
#include "tools/base/input_file.h"
#include "tools/history/tables.h"

namespace cachalot::tools {

struct HistoryEvent {
  enum class Action : std::uint8_t {  // PyTorch's names
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
  };

  Address address = 0;      // of oom: bytes that were free on the device
  std::uint64_t bytes = 0;  // requested, of alloc and free_*; of the segment, of segment_*; of the request, of oom
  std::int64_t time_us = 0;
  StackId stack = 0;
  DetailsId details = 0;     // in History::details
  std::uint16_t stream = 0;  // in History::streams
  std::uint16_t pool = 0;    // in History::pools
  Action action = Action::alloc;
};
static_assert(sizeof(HistoryEvent) == 40, "a file of 2 GB has some ten million of them");

struct HistoryBlock {
  enum class State : std::uint8_t { allocated, pending_free, free };  // kBlockStates names them

  Address address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;
  StackId stack = 0;
  DetailsId details = 0;
  TextId owner = 0;       // the object of Python that holds it, where the process told it: "GPT.blocks.3"
  TextId owner_kind = 0;  // its part in a module: "parameters"
  State state = State::free;
};

inline constexpr std::array<std::string_view, 3> kBlockStates = {"allocated", "pending_free",
                                                                 "free"};  // as JSON has them

struct HistorySegment {
  Address address = 0;
  std::uint64_t bytes = 0;
  std::size_t first_block = 0;  // in DeviceHistory::blocks
  std::size_t block_count = 0;  // in the order of addresses; they tile the segment, or its mapped part
  StackId stack = 0;
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
  bool is_small = false;  // PyTorch's small pool: blocks of at most 1 MiB
  bool is_expandable = false;
};

// One device's part; or that of the pinned host memory.
struct DeviceHistory {
  int device = 0;
  std::vector<HistoryEvent> events;      // oldest first
  std::vector<HistorySegment> segments;  // at the end
  std::vector<HistoryBlock> blocks;      // of all segments
  std::vector<HistorySegment> asleep{};  // that have no memory until they wake, at the end; without blocks

  // Returns the blocks of one of the segments.
  std::span<const HistoryBlock> blocks_of(const HistorySegment& segment) const {
    return std::span(blocks).subspan(segment.first_block, segment.block_count);
  }
};

// torch.cuda's external annotations: where a stage of the program begins or ends.
struct StageMark {
  std::int64_t time_us = 0;
  TextId name = 0;
  int device = 0;
  bool begins = true;
};

// The facts of a device beyond PyTorch's memory, from the file or an error message beside it. Bytes.
struct DeviceFacts {
  struct Process {
    std::uint64_t id = 0;
    std::uint64_t bytes = 0;
    std::string name;
  };
  struct Tag {
    PoolId pool;
    std::string name;
  };
  struct Library {
    std::string name;
    std::uint64_t bytes = 0;  // live, in the heap of all
  };
  // The words of a process on cachalot about itself, as its memory ran out.
  struct Failing {
    std::string who;                  // "rank3, process 4242, failure 1"
    std::uint64_t segment_bytes = 0;  // that the device was asked for
    bool has_pages = false;           // its heap is the page heap
    bool is_refused = false;          // by throw_on_cudamalloc_oom, before the cache was given back
    bool has_nccl = false;            // it has communicators
    bool knows_owners = true;         // the search for owners came to its end
    std::vector<Tag> tags{};
    std::vector<Library> libraries{};
  };

  int device = 0;
  std::string name;                            // of the GPU, or ""
  std::optional<std::uint64_t> total_bytes;    // of the device
  std::optional<std::uint64_t> free_bytes;     // of the device, when it was written
  std::optional<std::uint64_t> limit_bytes;    // that the program set
  std::optional<std::uint64_t> nccl_bytes;     // NCCL's own
  std::optional<std::uint64_t> context_bytes;  // context and libraries of this process
  std::optional<std::uint64_t> process_bytes;  // of this process, with PyTorch's
  std::vector<Process> other_processes;
  std::optional<Failing> failing;
};

enum class HistoryFormat : std::uint8_t { torch_pickle, torch_json, cachalot_trace, rmm_csv };

struct History {
  std::string path;
  HistoryFormat format = HistoryFormat::torch_pickle;
  TextTable texts;
  StackTable stacks;
  ValueTable<EventDetails, DetailsId> details{"different details of events", EventDetails{}};
  ValueTable<std::uint64_t, std::uint16_t> streams{"streams", 0};  // handles
  ValueTable<PoolId, std::uint16_t> pools{"pools", PoolId{0, 0}};  // (0, 0): the default pool

  std::vector<DeviceHistory> devices;  // of those that have segments or events, by number
  std::vector<DeviceHistory> host;     // pinned host memory, in snapshots since PyTorch 2.14
  std::vector<StageMark> stages;       // by time
  std::vector<DeviceFacts> facts;
  std::string settings;             // PYTORCH_CUDA_ALLOC_CONF, or ""
  std::size_t unknown_actions = 0;  // entries that are left out: a newer PyTorch's
};

// Returns what is known of the device beyond PyTorch's memory; nullptr where there are none.
inline const DeviceFacts* find_facts(const History& history, int device) {
  const auto found = std::ranges::find(history.facts, device, &DeviceFacts::device);
  return found == history.facts.end() ? nullptr : &*found;
}

// Returns the facts of the device, which may be new.
inline DeviceFacts& facts_of(History& history, int device) {
  const auto found = std::ranges::find(history.facts, device, &DeviceFacts::device);
  if (found != history.facts.end()) return *found;
  DeviceFacts& facts = history.facts.emplace_back();
  facts.device = device;
  return facts;
}

// Returns what the file tells. Throws InvalidArgument, which names file, place and rule, for a file of no known format, a
// damaged one, and one that takes more memory than its size allows (InputFile::memory_limit).
History read_history(InputFile file);
History read_history(const std::string& path);

// Returns the text about omitted events: "2 events of an unknown kind, from a newer PyTorch".
std::string unknown_actions_text(std::size_t count);

// Returns PyTorch's name of the action.
const char* name_of(HistoryEvent::Action action);

// The pools of events, where the file does not tell them.

// Returns whether an event has another pool than the default one.
bool has_pools(const DeviceHistory& device);

// Gives each event the pool of the segment at its address, if no event has a pool: PyTorch tells the pools of events since 2.12,
// and those of the segments at the end before. Memory of segments that are gone by then is taken to be the default pool's.
void complete_pools(DeviceHistory& device);

// Returns the bytes that an event adds to reserved memory; they are negative where it gives memory back.
std::int64_t reserved_change(const HistoryEvent& event);

// Return the reserved memory at the end, as the segments tell it, and before the first event. A history that was made by hand may
// have less than none before.
std::int64_t reserved_at_end(const DeviceHistory& device);
std::int64_t reserved_at_begin(const DeviceHistory& device);

// Lines of a traceback of Python. PyTorch has the calls of forward in this form, the oldest call first:
//
//     '  File "model.py", line 3, in forward\n    return self.layer(x)\n'
struct TracebackCall {
  std::string_view file;
  std::string_view function;
  std::uint32_t line = 0;

  friend bool operator==(const TracebackCall&, const TracebackCall&) = default;
};

// Returns the call. Of text in another form the first line is the function.
TracebackCall call_of_traceback(std::string_view text);

// Returns the text, without the source line.
std::string traceback_text(const TracebackCall& call);

}  // namespace cachalot::tools
