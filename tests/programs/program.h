// Programs of allocator operations: written at random, decoded from a fuzzer's bytes or pasted as text; run by a Player
// (player.h) on any heap, or side by side with the reference heap (tests/reference), and made shorter when they fail.
//
// As text a program is a line "devices <MiB> <MiB> options <text, or ->" and then one operation a line,
//
//   <kind> <device> <name> <stream> <amount>
//
// where `name` is of an allocation or a private pool, and fields that an operation does not need are 0. An operation
// that makes no sense where it stands (a free of memory that is not live), or that the player does not know, does
// nothing: so that any part of a program is a program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

struct Operation {
  enum class Kind : std::uint8_t {
    allocate,  // amount: bytes
    deallocate,
    deallocate_sized,  // with size, device and stream: another stream counts as a use on it
    record_stream,
    launch,       // amount: ns of work
    advance,      // amount: ns of the host
    empty_cache,  // of this device
    empty_all_caches,
    set_memory_fraction,  // amount: per mille
    configure,            // amount: index in kProgramOptions
    reset_peak,
    reset_accumulated,
    create_pool,
    begin_pool,
    end_pool,
    release_pool,
    set_no_split,
    set_use_on_oom,  // amount: 0 or 1
    empty_pool,
    begin_capture,  // of this stream, to graph pool `name`
    end_capture,
    donate,               // this allocation is freed by the callback for the next request that misses
    use,                  // amount: ns of work on this stream, or on the allocation's own where it is not announced
    wait,                 // this stream waits for stream `amount`
    synchronize,          // the host waits for this stream
    allocate_tagged,      // amount: bytes; it sleeps when the tag does
    allocate_contiguous,  // amount: bytes, in one handle
    allocate_aligned,     // amount: bytes, at a multiple of alignment_of(name)
    allocate_placed,      // both
    sleep,                // amount: 1 to save the content
    wake,
    checkpoint,  // of graph pool `name`
    restore,     // to its last checkpoint
    misuse,      // of allocation `name`, in this way: Misuse(`amount`)
    fail,        // call number `amount` of the device from now on, of kind `name` - 1 (0: any); stream 0: out of memory
    allocate_plain,   // amount: bytes, of plain memory
    switch_segments,  // amount: 0 or 1, expandable_segments from now on; where the heap has pages
    kCount,
  };
  Kind kind = Kind::allocate;
  int device = 0;
  std::uint64_t name = 0;
  std::uint64_t stream = 0;
  std::uint64_t amount = 0;
};
const char* to_string(Operation::Kind kind);

inline constexpr std::uint64_t kProgramStreams = 4;  // 0: the default stream

// large_segment_size_mb keeps its value until it is named again, and bounds max_split_size_mb from below.
inline constexpr std::array kProgramOptions = {
    "",
    "large_segment_size_mb:20,max_split_size_mb:20",
    "large_segment_size_mb:20,max_split_size_mb:24,max_non_split_rounding_mb:22",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.8,max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:16,8:4,32:2,>:8]",
    "large_segment_size_mb:12",
    "large_segment_size_mb:32,max_split_size_mb:40",
    "large_segment_size_mb:20,roundup_power2_divisions:[>:2]",
};

// From a block's granularity to kMaxAlignment.
constexpr std::size_t alignment_of(std::uint64_t name) { return std::size_t{512} << name % 13; }

// Mistakes of a program that are refused with a message.
enum class Misuse : std::uint64_t { free_twice, free_inside, wrong_size, wrong_device, foreign_pointer, kCount };

struct Program {
  std::array<std::size_t, 2> device_mib = {256, 256};
  std::string options;  // without spaces
  std::vector<Operation> operations;
};

std::string to_text(const Program& program);
Program program_of(std::string_view text);  // InvalidArgument for an invalid program

// A shorter program that still fails: parts are left out as long as that can be done. `run` returns "" or the trouble.
Program shortened(Program program, const std::function<std::string(const Program&)>& run);

}  // namespace cachalot
