// Reads out-of-memory messages: of all versions of PyTorch and its backends, of other libraries, and of CUDA itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/history/history.h"

namespace cachalot::tools {

// The figures of a message. Sizes are in bytes, as exact as in the message: two decimal places of a unit. A figure is absent
// if the message does not have it, or if it cannot be true: 17179869184.00 GiB stands for an unknown value.
struct OomMessage {
  // The cause that the words of a message name, beside its figures.
  enum class Says : std::uint8_t {
    nothing,
    pinned,         // pinned host memory ran out
    host_memory,    // pageable memory of the host
    nccl,           // NCCL's own request failed
    outside,        // CUDA itself, or a library beside the allocator, found no memory
    limit,          // a limit that was set forbids it
    driver,         // the driver does not serve such a request
    too_large,      // the program needs more than the device has
    fragmentation,  // the free memory of its own pool is in pieces
  };

  std::string framework = "PyTorch on CUDA";
  std::string source;       // the rank or process of the log: "rank 3", "pid 2313", or ""
  bool is_of_torch = true;  // its figures are those of PyTorch's caching allocator, as a snapshot has them
  bool is_cut = false;      // the end of the message is missing
  Says says = Says::nothing;
  std::string words;  // for a reader: what the message says; "" where its figures say it

  int device = 0;
  bool has_device = false;  // the message names it
  std::optional<std::uint64_t> requested_bytes;
  std::optional<std::uint64_t> total_bytes;         // of the device
  std::optional<std::uint64_t> free_bytes;          // of the device
  std::optional<std::uint64_t> false_free_bytes;    // its free bytes, if more than the device has
  std::optional<std::uint64_t> process_bytes;       // of this process, with memory that is not PyTorch's
  std::optional<std::uint64_t> allowed_bytes;       // by set_per_process_memory_fraction, or by another limit
  std::optional<std::uint64_t> allocated_bytes;     // by PyTorch, with what private pools cache
  std::optional<std::uint64_t> private_bytes;       // cached in private pools
  std::optional<std::uint64_t> unallocated_bytes;   // reserved and not allocated, outside of private pools
  std::optional<std::uint64_t> reserved_bytes;      // by PyTorch, where the message has it, or the sum of its parts
  std::optional<std::uint64_t> largest_free_bytes;  // the largest free block that could be used
  std::optional<std::uint64_t> beside_bytes;        // of the framework, beside its allocator: Metal's other allocations
  std::optional<DeviceFacts::Process>
      own_process;  // found among the processes by its bytes, because its number differs in a container
  std::vector<DeviceFacts::Process> other_processes;
};

inline constexpr std::size_t kMostOfOne = 8;
inline constexpr std::size_t kMostMessages = 64;

// Reads the messages of a log, of one rank or several, in their order and without repetitions. Returns the last kMostOfOne of each
// rank and device, and at most the last kMostMessages. Throws InvalidArgument, which names `path`, if there is none.
std::vector<OomMessage> read_oom_messages(std::string_view log, std::string_view path);

// Adds the message's figures of its device to the facts of the history, unless these already have such a figure.
void add_facts(const OomMessage& message, History& history);

}  // namespace cachalot::tools
