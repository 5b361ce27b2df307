// The allocator's options, and the one parser of their text form: PYTORCH_CUDA_ALLOC_CONF's grammar and keys
// (PyTorch 2.11) with cachalot's own keys added.
//
//   options = [ key ':' value { ',' key ':' value } ]      spaces anywhere are ignored; no key twice
//   value   = token | '[' token ':' token { ',' token ':' token } ']'
//
// key                              value                    default    rule
// large_segment_size_mb            MiB                      20         > 10
// max_split_size_mb                MiB                      unlimited  >= large_segment_size_mb
// max_non_split_rounding_mb        MiB                      large_segment_size_mb   >= large_segment_size_mb
// garbage_collection_threshold     number                   0 (off)    in (0, 1); acts with a memory fraction < 1
// roundup_power2_divisions         N | [MiB:N,...,>:N]      0 (off)    N and MiB powers of two; in a list N may be 0
// per_process_memory_fraction      number                   1          in [0, 1]
// expandable_segments              True | False             False      True: heap:pages
// release_lock_on_cudamalloc       True | False             False      accepted; the lock is never held there
// graph_capture_record_stream_reuse  True | False           False      stored
// pinned_use_background_threads    True | False             False      stored (host allocator)
// pinned_use_cuda_host_register    True | False             False      stored
// pinned_num_register_threads      N                        1          a power of two, <= 128
// pinned_reserve_segment_size_mb   MiB                      0          > 0
// backend                          native                   native     cudaMallocAsync is refused
// heap                             segments | pages         segments   ours: PyTorch's policy, or the page heap
// cross_stream                     off | completed | wait   wait       ours; page heap: whether memory freed on one stream
//                                                                      serves others: never, when its work was seen done,
//                                                                      or also by a wait on the GPU rather than growing
// remap_slack                      number                   0          ours, in [0, 1]; page heap: new memory rather than
//                                                                      remapping while so much more than the most that was
//                                                                      live is held, as a part of it
// page_size_mb                     MiB                      0          ours; page heap: the largest handle asked of the
//                                                                      device, a multiple of 2 up to 1024; 0: 32, or less
//                                                                      where memory is scarce: a 4096th of what is left
// max_mappings                     N                        262144     ours, > 0; page heap: mappings it keeps before those
//                                                                      that are not in use are undone (a context is
//                                                                      reported to stand about 500,000)
// thread_cache                     True | False             True with  ours: mallocs and frees of up to 64 KiB go through
//                                                           heap:pages caches of the threads, without a lock (on Linux
//                                                                      before 4.14, which has no membarrier: False)
// guard                            True | False             as debug   ours: canaries around every block, poison in what is
//                                                                      freed (guard.h); fixed when the allocator is made
// guard_quarantine_mb              MiB                      256        ours; with guard: freed blocks of a device that are
//                                                                      kept to see who writes to them
// debug                            True | False             False      ours: what the caller does wrong is reported, too, and
//                                                                      reports have stacks; turns the guard on unless that
//                                                                      is said to be off; fixed likewise
//
// The environment variable CACHALOT_DEBUG=1 is debug:True where the C API and PyTorch read CACHALOT_CONF, whose text comes
// on top of it.
//
// release_lock_on_hipmalloc and pinned_use_hip_host_register are other names of their cuda twins, as in PyTorch.
// large_segment_size_mb is applied first, wherever it stands. In a list the first interval also fills the slots below
// it, a later one its own slot only, and '>' every slot after the last one given.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

struct Options {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kRoundupSlots = 16;  // slot i: requests in [1 MiB << i, 2 MiB << i); ends take the rest

  std::size_t large_segment_size = std::size_t{20} << 20;      // bytes
  std::size_t max_split_size = kUnlimited;                     // bytes
  std::size_t max_non_split_rounding = std::size_t{20} << 20;  // bytes
  double garbage_collection_threshold = 0;
  std::array<std::size_t, kRoundupSlots> roundup_power2_divisions{};
  double per_process_memory_fraction = 1;
  bool expandable_segments = false;
  bool release_lock_on_cudamalloc = false;
  bool graph_capture_record_stream_reuse = false;
  bool pinned_use_background_threads = false;
  bool pinned_use_cuda_host_register = false;
  std::size_t pinned_num_register_threads = 1;
  std::size_t pinned_reserve_segment_size = 0;  // bytes
  std::string backend = "native";
  std::string heap = "segments";
  std::string cross_stream = "wait";
  double remap_slack = 0;
  std::size_t page_size = 0;  // bytes
  std::size_t max_mappings = 262144;
  std::optional<bool> thread_cache;                       // none: as the heap is, on for pages
  std::optional<bool> guard;                              // none: as debug is
  std::size_t guard_quarantine = std::size_t{256} << 20;  // bytes
  bool debug = false;

  std::string text;  // as given; what snapshots show as PYTORCH_CUDA_ALLOC_CONF
};
bool operator==(const Options& a, const Options& b);
inline bool operator!=(const Options& a, const Options& b) { return !(a == b); }

// Whether these options ask for the page heap.
inline bool uses_pages(const Options& options) { return options.heap == "pages" || options.expandable_segments; }

// Whether they ask for canaries and poison.
inline bool has_guard(const Options& options) { return options.guard.value_or(options.debug); }

// Returns `base` with `text` applied. As in PyTorch, max_split_size, max_non_split_rounding, roundup_power2_divisions
// and garbage_collection_threshold that `text` does not name go back to their defaults; every other option keeps its
// value in `base`. Strict: the first mistake throws InvalidArgument, which names key, value and rule.
Options parse_options(std::string_view text, const Options& base = {});

// The same, but every option that `text` does not name keeps its value in `base`; a max_non_split_rounding that is its
// default, large_segment_size, stays that. Values that no single text may have together are refused here, too.
Options amend_options(std::string_view text, const Options& base);

// What CACHALOT_DEBUG says: true for "1", false for "0" and "". Throws InvalidArgument for anything else.
bool parse_debug(std::string_view value);

// PYTORCH_CUDA_ALLOC_CONF for a program that ran on PyTorch's allocator and should run on this one.
struct PytorchConf {
  Options options;
  std::vector<std::string> warnings;  // a sentence for each setting that was left out
};
// As parse_options, but leaves out, with a warning each, what this library does not know (a key of a newer PyTorch).
// A bad value of a known key is an error: InvalidArgument. expandable_segments:True asks for the page heap.
PytorchConf parse_pytorch_conf(std::string_view text, const Options& base = {});

// Whether `key` is one of the keys above or another name of one.
bool is_option(std::string_view key);

}  // namespace cachalot
