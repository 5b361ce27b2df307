// The allocations of a history, each from its request to its free, with those that were there before the recording began.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tools/history/history.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

struct Allocation {
  static constexpr std::uint32_t kBefore = std::numeric_limits<std::uint32_t>::max();  // as `begin`
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();   // as `end`

  Address address = 0;
  std::uint64_t bytes = 0;        // requested
  std::uint32_t begin = kBefore;  // the event that made it
  std::uint32_t end = kNever;     // the event that freed it: free_requested, else free_completed
  StackId stack = 0;
  DetailsId details = 0;  // of the newest annotation, which has what was known before
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
};

// Returns them in the order of their begins: first those from before, by address. Memory that the history frees without
// having allocated it, and memory that lives at the end and is not in the history, was there before; an allocation at
// the address of a live one ends that one. Takes time and memory in proportion to the events, whatever their addresses.
std::vector<Allocation> allocations_of(const DeviceHistory& history);

// The change of an allocation at an event.
struct AllocationStep {
  static constexpr std::uint32_t kBefore = Allocation::kBefore;  // as `event`: it was there before the first one

  std::uint32_t event = 0;
  bool is_free = false;
  std::size_t allocation = 0;  // index
};

// Returns begins and ends in the order of the events. A free comes before the request at its address of the same event.
std::vector<AllocationStep> steps_of(const std::vector<Allocation>& allocations);

// Returns the history as a trace for a replay. A pool's memory serves that pool alone, so each pair of stream and pool
// becomes a stream of its own. A request that failed is left out; or it is played, and freed at once: whether a policy has
// memory for it is then known. Throws InvalidArgument when the history has neither an allocation nor a free.
//
// Where the program gave its cached memory back, the replay does so (TraceEvent::empties_cache); but not in a history with memory
// pools, whose memory stays theirs. Memory that PyTorch gave back for a request that the device had no memory for is listed
// beside the events (Trace::segments), with the segments that it took: replays under PyTorch's policy alone follow that.
//
// The replay decides anew where everything goes; it need not come to the recorded segments. An allocation becomes one of
// the bytes that were asked for, a request to free it a free, its completion nothing, unless the free was not requested
// (a pool set back to a checkpoint, say).
enum class FailedRequests : std::uint8_t { left_out, played };
// Events of a trace that make the earlier memory (recorded_start.h): in place of the allocations from before alone, and of the
// history's first events.
struct TraceStart {
  std::vector<HistoryEvent> events;
  std::size_t left_out = 0;  // events of the history
};
Trace trace_of(const History& history, const DeviceHistory& device, FailedRequests failed = FailedRequests::left_out,
               const TraceStart* start = nullptr);

// Returns a trace for each device whose history has allocations or frees. Throws InvalidArgument when there is none.
std::vector<Trace> traces_of(const History& history);

// Returns the bytes of the allocations that were there when the history begins.
std::uint64_t earlier_bytes_of(std::span<const Allocation> allocations);

// Returns whether the device has something to replay: an allocation, a free, or blocks that are older than its history.
bool has_trace(const DeviceHistory& device);

}  // namespace cachalot::tools
