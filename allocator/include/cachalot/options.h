/// @file
/// The allocator's options, and the parser of their text form.
///
/// The grammar and the keys are those of PYTORCH_CUDA_ALLOC_CONF (PyTorch 2.11, and
/// throw_on_cudamalloc_oom of 2.12), with cachalot's
/// own keys added:
///
///     options = [ key ':' value { ',' key ':' value } ]
///     value   = token | '[' token ':' token { ',' token ':' token } ']'
///
/// Spaces are ignored, and no key may occur twice. A key with an effect has the name of a member of
/// Options; the keys of members in bytes end in _mb and count MiB. docs/reference/options.md has
/// all keys, values, defaults and rules in one table.
///
/// release_lock_on_hipmalloc and pinned_use_hip_host_register are aliases of the cuda keys, as in
/// PyTorch. large_segment_size_mb is applied first, wherever it occurs. In a list for
/// roundup_power2_divisions the first interval also fills the slots below it, each later one its
/// own slot, and '>' every slot after the last one given.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

CACHALOT_BEGIN_API

/// A MemoryLimit is a bound on the bytes that an allocator holds from a device:
///
///     "20GiB"      so many bytes (512MiB, 24GB, 1073741824)
///     "80%"        a part of the device's total memory, above 0 and at most 100 percent
///     "free"       all that is free on the device when the bound is set, and what is held by then
///     "free-2GiB"  the same, less 2 GiB that stay free for others
///     "none"       no bound
struct MemoryLimit {
  static constexpr std::size_t kNone =
      std::numeric_limits<std::size_t>::max();  ///< in_bytes without a bound

  /// The quantities that a bound is measured from.
  enum class Base : std::uint8_t {
    none,   ///< there is no bound
    bytes,  ///< 0
    total,  ///< the device's total memory
    free,   ///< the memory that is free on the device, and the memory held already
  };
  Base base = Base::none;  ///< the base of the bound
  double percent = 0;      ///< of the total, with Base::total
  std::size_t bytes = 0;   ///< the bound with Base::bytes; with Base::free, what is left to others

  /// Returns the bound that `text` names, in a form from above. Spaces are ignored.
  /// Throws InvalidArgument, which names the text and the rule.
  static MemoryLimit parse(std::string_view text);
  /// Returns the bound of `bytes` bytes.
  static MemoryLimit of_bytes(std::size_t bytes) { return {Base::bytes, 0, bytes}; }

  /// Returns the bound in bytes, or kNone, on a device with `total_bytes` in total, of which
  /// `free_bytes` are free and `held_bytes` are held.
  std::size_t in_bytes(std::size_t total_bytes, std::size_t free_bytes,
                       std::size_t held_bytes) const;
};

/// Compares all members.
inline bool operator==(const MemoryLimit& a, const MemoryLimit& b) {
  return a.base == b.base && a.percent == b.percent && a.bytes == b.bytes;
}
/// Compares all members.
inline bool operator!=(const MemoryLimit& a, const MemoryLimit& b) { return !(a == b); }

/// Returns a text that MemoryLimit::parse reads as the same bound.
std::string to_string(const MemoryLimit& limit);

/// A SoftLimitReport describes how an allocator came to hold more than its soft limit.
struct SoftLimitReport {
  int device = 0;              ///< index of the device
  std::size_t held_bytes = 0;  ///< bytes held from the device, those of the allocation included
  std::size_t soft_limit_bytes = 0;  ///< the soft limit
};

/// A SoftLimitCallback is called when the memory that an allocator holds comes to exceed its soft
/// limit: once, until held memory has been at or below the soft limit again. It is called on the
/// thread whose call made the allocator hold more, after the memory was allocated and before the
/// call returns, with none of the allocator's locks held: it may call the allocator, to free or to
/// trim. If it throws, that call frees its memory and throws the same.
using SoftLimitCallback = std::function<void(const SoftLimitReport&)>;

/// A HeapKind is a way to divide device memory into blocks.
enum class HeapKind : std::uint8_t {
  segments,  ///< PyTorch's policy, over cudaMalloc
  pages,     ///< the page heap
  async,     ///< PyTorch's policy, over CUDA's own stream-ordered pool (cudaMallocAsync)
  managed,   ///< PyTorch's policy, over managed memory (cudaMallocManaged)
};

/// A CrossStream is the page heap's use of memory that was freed on another stream.
enum class CrossStream : std::uint8_t {
  off,        ///< never
  completed,  ///< when its work was seen to be complete
  scarce,     ///< also after a wait on the GPU, if there is no new memory
  wait,       ///< also after a wait on the GPU, instead of growing
};

/// An OomWait is what a request may wait for before it fails with OutOfMemory.
enum class OomWait : std::uint8_t {
  never,   ///< nothing: it fails at once where memory would come only with the end of work
  events,  ///< the end of work that uses memory which was freed, stream by stream
  device,  ///< as events, and then all work of the device
};

/// Options select the allocator's policy, heap and checks. The values are PyTorch's defaults unless
/// a program changes them. `heap`, `guard` and `debug` are fixed when an allocator is created; all
/// others can change later (CachingAllocator::configure). The key `backend` has no member: its
/// value is always "native".
struct Options {
  static constexpr std::size_t kUnlimited =
      std::numeric_limits<std::size_t>::max();  ///< max_split_size without a limit
  /// The number of roundup_power2_divisions. Slot i is for requests in [1 MiB << i, 2 MiB << i);
  /// the first and the last also serve smaller and larger requests.
  static constexpr std::size_t kRoundupSlots = 16;

  /// The size of the segments for requests between 1 and 10 MiB; more than 10 MiB.
  std::size_t large_segment_size = std::size_t{20} << 20;
  /// Blocks of at least this size are not split, and serve only requests of similar size; at least
  /// large_segment_size.
  std::size_t max_split_size = kUnlimited;
  /// A block that is not split may be larger than the request by this; at least large_segment_size.
  std::size_t max_non_split_rounding = std::size_t{20} << 20;
  /// Cached segments are returned, oldest first, above this part of the memory limit; in (0, 1), or
  /// 0 for off. It needs a memory fraction below 1, or a limit.
  double garbage_collection_threshold = 0;
  /// Request sizes are rounded up to a power of two divided by this; powers of two, or 0 for off.
  std::array<std::size_t, kRoundupSlots> roundup_power2_divisions{};
  double per_process_memory_fraction = 1;  ///< limit on reserved memory, as a part of the device
  /// Another limit on the memory held from each device; of the two the lower one holds. One that
  /// depends on free memory is measured when the allocator first needs memory of the device.
  MemoryLimit limit;
  /// Refuses a request, with no attempt to recover, if held memory would exceed
  /// per_process_memory_fraction with it. set_memory_fraction has no effect on this.
  bool throw_on_cudamalloc_oom = false;
  bool expandable_segments = false;  ///< true selects the page heap, as HeapKind::pages
  /// Over the page heap, requests are for plain memory (AllocateOptions), those of tags excepted:
  /// set by expandable_segments:False, and no longer by expandable_segments:True. Memory that is
  /// there stays as it is. May change at any time, as PyTorch's expandable_segments.
  bool plain = false;
  /// The most bytes that a PinnedHostAllocator pins; at least 2 MiB, or 0 for no limit.
  std::size_t pinned_limit = 0;
  HeapKind heap = HeapKind::segments;                 ///< PyTorch's policy or the page heap
  CrossStream cross_stream = CrossStream::completed;  ///< streams whose memory is reused
  /// The longest wait for work before OutOfMemory. With less than `device`, cached segments of
  /// heap:segments do not go back to make room, since cudaFree waits for the device.
  OomWait oom_wait = OomWait::device;
  /// Streams live as long as the process, as those of PyTorch do: a handle is always the same
  /// stream. If false, a handle may be another stream's once its stream was destroyed
  /// (CachingAllocator::stream_ends). Has effect when the allocator is made.
  bool immortal_streams = false;
  /// The page heap allocates new memory, in large handles, instead of remapping while reserved
  /// memory is at most (1 + remap_slack) times the peak of live memory; in [0, 1]. Empty: 0 with
  /// one stream; with several up to 0.1, a byte for each that has moved.
  std::optional<double> remap_slack;
  /// The page heap measures the driver's calls that it makes, and plans by what they cost here. If
  /// false, it plans by published costs. May change at any time.
  bool calibrate = true;
  /// The largest handle that the page heap asks of the device; a multiple of 2 MiB up to 1 GiB. 0:
  /// 32 MiB, or less where memory is scarce (a 4096th of the free memory); for memory that may move
  /// 2 MiB, or more, up to that, where handles cost the driver much.
  std::size_t page_size = 0;
  /// Allocations of up to 64 KiB use caches of the threads, without a lock. Empty: on with the page
  /// heap. Always off without membarrier (Linux before 4.14).
  std::optional<bool> thread_cache;
  /// Canaries surround every block, and freed memory is poisoned (guard.h). Empty: as `debug`.
  std::optional<bool> guard;
  /// Mistakes of callers are reported, and reports have call stacks.
  bool debug = false;

  /// The options of PyTorch that are accepted without effect, with their values (True is 1, sizes
  /// in bytes), sorted by key; those that have their defaults are left out. Snapshots show them.
  std::vector<std::pair<std::string, std::size_t>> without_effect;
  std::string text;  ///< the text that was parsed; snapshots show it as PYTORCH_CUDA_ALLOC_CONF
};

/// Compares all members.
bool operator==(const Options& a, const Options& b);
/// Compares all members.
inline bool operator!=(const Options& a, const Options& b) { return !(a == b); }

/// Returns true if these options select the page heap.
inline bool uses_pages(const Options& options) {
  return options.heap == HeapKind::pages || options.expandable_segments;
}

/// Returns true if new memory is expandable segments in PyTorch's words: pages.
inline bool takes_pages(const Options& options) { return uses_pages(options) && !options.plain; }

/// Returns the heap that these options select.
inline HeapKind selected_heap(const Options& options) {
  return uses_pages(options) ? HeapKind::pages : options.heap;
}

/// Returns the name of the heap as the option `heap` spells it: "segments", "pages", "async" or
/// "managed".
inline const char* to_string(HeapKind heap) {
  switch (heap) {
    case HeapKind::segments:
      break;
    case HeapKind::pages:
      return "pages";
    case HeapKind::async:
      return "async";
    case HeapKind::managed:
      return "managed";
  }
  return "segments";
}

/// Returns true if these options turn the guard on.
inline bool has_guard(const Options& options) { return options.guard.value_or(options.debug); }

/// Returns `base` with `text` applied. As in PyTorch, max_split_size, max_non_split_rounding,
/// roundup_power2_divisions and garbage_collection_threshold return to their defaults if `text`
/// does not name them; every other option keeps its value in `base`.
///
/// Throws: InvalidArgument for the first mistake, naming key, value and rule.
Options parse_options(std::string_view text, const Options& base = {});

/// Returns `base` with `text` applied; every option that `text` does not name keeps its value. A
/// max_non_split_rounding that is its default, large_segment_size, follows large_segment_size.
///
/// Throws: InvalidArgument for the first mistake, and for values that exclude each other.
Options amend_options(std::string_view text, const Options& base);

/// Returns the value of CACHALOT_DEBUG: true for "1", false for "0" and "". The C library and the
/// PyTorch plug-in apply it as debug:True before CACHALOT_CONF.
///
/// Throws: InvalidArgument for any other value.
bool parse_debug(std::string_view value);

/// A PytorchConf is PYTORCH_CUDA_ALLOC_CONF for a program that ran on PyTorch's allocator and
/// should run on this one.
struct PytorchConf {
  Options options;                    ///< the settings that cachalot knows
  std::vector<std::string> warnings;  ///< a sentence for each setting that was left out
};

/// Parses `text` as parse_options does, but leaves out keys that cachalot does not know (those of a
/// newer PyTorch) with a warning each. expandable_segments:True selects the page heap.
///
/// Throws: InvalidArgument for an invalid value of a known key.
PytorchConf parse_pytorch_conf(std::string_view text, const Options& base = {});

/// Returns true if `key` is a key of Options or an alias of a key.
bool is_option(std::string_view key);

/// Returns a sentence for each option without effect that does not have its default. The C library
/// and the PyTorch plug-in print them for CACHALOT_CONF, each once per process.
std::vector<std::string> options_without_effect(const Options& options);

CACHALOT_END_API
