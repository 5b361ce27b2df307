// Why memory ran out. Each cause is tested by what would be there without it: cached memory is the cause if the request would have
// been served had it been free in one piece; a limit, if the device had the memory; another process, if what it holds would have
// been enough. The report of CACHALOT_ON_OOM is this one (failing_process.h).
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

#include "tools/analysis/categories.h"
#include "tools/analysis/holders.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// Memory that grows with the steps of a program: perhaps a leak.

// A line of the program whose memory grows.
struct Growth {
  std::string at;
  std::uint64_t bytes = 0;                 // that it holds at the moment
  std::vector<std::uint32_t> allocations;  // the live ones, the oldest first
};

// Returns the lines whose live memory was allocated throughout the history, those with most bytes first. Of a training these
// are lines with memory that outlived two backward passes; of other programs those with memory of several steps, where a step is
// an allocation outside of modules that is freed and made again.
std::vector<Growth> growth_until(const Timeline& timeline, std::span<const Category> categories, const Moment& moment,
                                 Sites& sites);

enum class Cause : std::uint8_t {
  fragmentation,
  other_stream,
  private_pool,
  graph_pools,
  oversize_blocks,
  cached_by_rounding,
  waiting,
  asleep,
  limit,
  leak,
  other_process,
  nccl,
  pinned,
  too_large,
  wrong_shape,
  host_memory,
  driver,
  outside,
  unknown,
  none,
};
inline constexpr std::size_t kCauseCount = 20;

// Less than this part of reserved memory is not the reason, even where it would just have been enough.
inline constexpr double kWorthNaming = 0.06;

// A CUDA context with libraries holds up to this, without NCCL; and, with cuDNN and cuBLAS on some GPUs, up to the second.
inline constexpr std::uint64_t kUsualContext = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMostOfContext = kUsualContext + kUsualContext / 2;

// Returns whether what a process holds outside of PyTorch is more than a context: by itself, or beside the little that it reserved.
inline bool is_more_than_context(std::uint64_t outside_bytes, std::uint64_t reserved_bytes) {
  constexpr std::uint64_t kMuch = 4;
  return outside_bytes > kMostOfContext || (outside_bytes > kUsualContext && outside_bytes >= reserved_bytes / kMuch);
}

// Returns the key of JSON, "other_stream".
std::string_view key_of(Cause cause);

// A request that was not served.
struct Failure {
  std::uint64_t requested_bytes = 0;
  std::optional<std::uint64_t> device_free_bytes;
  std::uint16_t stream = 0;  // in History::streams
  std::uint16_t pool = 0;    // in History::pools
};

// Memory that the program could not use for the request: free memory of segments with live blocks, and the bytes of blocks
// beyond their requests.
struct Cached {
  std::uint64_t bytes = 0;
  std::uint64_t largest_bytes = 0;  // in one piece
  std::size_t pieces = 0;
  std::size_t segments = 0;
};

// A line of the program whose live blocks keep free memory from being given back.
struct Pin {
  std::string at;                 // the line, or the blocks' owner where there is no call stack; "": not told
  std::uint64_t free_bytes = 0;   // of the segments with its blocks, by their part of the live bytes there
  std::uint64_t block_bytes = 0;  // of its blocks in them
  std::size_t blocks = 0;
  std::size_t segments = 0;
};

// The known figures at the moment of the failure, or of the peak.
struct Evidence {
  std::optional<Failure> failure;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t most_reserved_bytes = 0;  // in the whole history
  std::uint64_t allocated_bytes = 0;
  std::array<Cached, kCauseCount> withheld{};  // by cause: of those up to cached_by_rounding
  std::uint64_t leaked_bytes = 0;
  std::uint64_t waiting_bytes = 0;           // freed, but other streams may still use them
  bool is_asleep = false;                    // the request is for memory that sleeps: to wake it
  bool is_refused = false;                   // by an option, before cached memory was given back
  std::optional<std::uint64_t> total_bytes;  // of the device
  std::optional<std::uint64_t> limit_bytes;
  std::optional<std::uint64_t> other_process_bytes;
  std::optional<std::uint64_t> own_outside_bytes;  // context, NCCL and other libraries of this process
  std::optional<std::uint64_t> unnamed_bytes;      // neither free nor of a process that is known
  std::optional<std::uint64_t> nccl_bytes;
  bool uses_nccl = false;
  std::optional<Cause> said;            // by the words of a message
  bool is_known_without_limit = false;  // a message would say that one is set

  const Cached& of(Cause cause) const { return withheld[static_cast<std::size_t>(cause)]; }
  Cached& of(Cause cause) { return withheld[static_cast<std::size_t>(cause)]; }
};

// Adds what the segments of the moment withhold from a request on the failure's stream and pool; without a failure on the default
// ones.
void add_withheld(Evidence& evidence, std::span<const SegmentAt> segments, const Timeline& timeline);

// Returns for each of History::pools whether it is a CUDA graph's: by its number, and by the code that allocated in it.
std::vector<bool> graph_pools_of(const Timeline& timeline);

// Returns the lines whose blocks pin most free memory, with at most `most` elements. `owners` are of the allocations, or empty.
std::vector<Pin> pins_of(std::span<const SegmentAt> segments, const Timeline& timeline,
                         std::span<const BlockOwner> owners, Sites& sites, std::size_t most);

// Returns how much the program could reserve at most when the request failed. Requires a failure.
std::uint64_t available_bytes(const Evidence& evidence);

// Returns the first cause that explains the failure: Cause::none without a failure.
Cause cause_of(const Evidence& evidence);

}  // namespace cachalot::tools
