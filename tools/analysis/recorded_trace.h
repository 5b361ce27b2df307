// Recorded programs as traces for replays: their allocations, and the memory that they began with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tools/analysis/timeline.h"
#include "tools/history/history.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

// Returns how much memory was reserved at most, by the events of segments and the segments at the end; nullopt where the
// history begins later than the program: there was memory before.
std::optional<std::size_t> recorded_reserved_bytes(const DeviceHistory& device);

// The memory that PyTorch held when a recording began, for replays under its own policy: what a program holds later depends on
// the segments that it had, and on the free blocks in them.
struct RecordedStart {
  std::vector<HistoryEvent> events;       // that make this memory, in place of the history's first ones
  std::size_t left_out = 0;               // events of the history
  std::uint64_t peak_reserved_bytes = 0;  // by the segments, from the start on
};

// Returns allocations and frees that make the recorded segments on an empty device, in the order of their addresses, with the
// live and the free blocks in them. Segments that the history gives back before anything else, by
// torch.cuda.empty_cache(), are left out.
//
// Returns nullopt where the replay of a history needs no such beginning, or it is not known: nothing lived then, the file has no
// segments, they are expandable, or the program's settings change how requests are rounded or blocks split.
std::optional<RecordedStart> recorded_start(const Timeline& timeline);

// A request that failed, where the history does not have it.
struct LastRequest {
  std::uint64_t bytes = 0;
  std::uint16_t stream = 0;  // in History::streams
  std::uint16_t pool = 0;    // in History::pools
};

// The way to make a trace of a timeline, and what the program does otherwise in it.
struct TraceOptions {
  // Requests that failed are played, and freed at once: whether a policy has memory for them is then known. Else they are left out.
  bool plays_failures = true;
  std::optional<LastRequest> request{};  // at the end, played as well
  const RecordedStart* start = nullptr;
  // The pools, or streams, that take the places of those in History::pools, History::streams; empty: their own.
  std::vector<std::uint16_t> pools{};
  std::vector<std::uint16_t> streams{};
  std::multimap<std::uint32_t, std::uint32_t> freed{};  // allocations that are freed earlier, by the event before
  bool follows_segments = true;  // the trace has the recorded segments: the changed program would have had others
};

// Returns the history as a trace for a replay. A pool's memory serves that pool alone, so each pair of stream and pool
// becomes a stream of its own. Throws InvalidArgument when the history has neither an allocation nor a free.
//
// Where the program gave its cached memory back, the replay does so (TraceEvent::empties_cache); but not in a history with memory
// pools, whose memory stays theirs. Memory that PyTorch gave back for a request that the device had no memory for is listed
// beside the events (Trace::segments), with the segments that it took: replays under PyTorch's policy alone follow that.
//
// The replay decides anew where everything goes; it need not come to the recorded segments. An allocation becomes one of
// the bytes that were asked for, a request to free it a free, its completion nothing, unless the free was not requested
// (a pool set back to a checkpoint, say).
Trace trace_of(const Timeline& timeline, const TraceOptions& options = {});

// Returns the trace by which every command answers what the program would need: the requests that failed are played, and
// PyTorch's default policy goes on from the memory that it had (Trace::as_recorded).
Trace program_trace_of(const Timeline& timeline);

// Returns such a trace for each device whose history has allocations or frees. Throws InvalidArgument when there is none.
std::vector<Trace> traces_of(const History& history);

// Returns whether the device has something to replay: an allocation, a free, or blocks that are older than its history.
bool has_trace(const DeviceHistory& device);

}  // namespace cachalot::tools
