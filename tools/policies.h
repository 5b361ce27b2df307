// The allocator policies that can be advised, as data: settings of PyTorch's own allocator, and of the page heap.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/trace_reader.h"

namespace cachalot::tools {

struct AllocatorPolicy {
  enum class Heap : std::uint8_t { segments, expandable_segments, pages };

  Heap heap = Heap::segments;
  // PyTorch's options, for segments. 0: not set.
  std::size_t max_split_size_mb = 0;
  std::size_t roundup_power2_divisions = 0;
  double garbage_collection_threshold = 0;
  std::size_t limit_bytes = 0;  // of the memory that is held; garbage collection needs one
  // Options of the page heap; these are their defaults.
  std::size_t page_size_mb = 0;
  double remap_slack = 0;
  std::string_view cross_stream = "completed";

  friend auto operator<=>(const AllocatorPolicy&, const AllocatorPolicy&) = default;  // NOLINT(modernize-use-nullptr)
};

// Returns its name in tables and JSON, the options that differ from PyTorch's default: "native",
// "max_split_size_mb:128", "expandable_segments:True", "heap:pages,page_size_mb:2". A limit is no part of it.
std::string key_of(const AllocatorPolicy& policy);

// Returns the options for a replay (options.h). Not for expandable segments, which are a model.
std::string config_of(const AllocatorPolicy& policy);

// Returns what a user sets, or puts in front of the program, on a GPU of so many bytes; "" for PyTorch's default.
std::string line_of(const AllocatorPolicy& policy, std::size_t device_bytes);

// Returns the fraction of a device that PyTorch is to be given as a limit of about so many bytes: four decimals, above 0
// and below 1.
double fraction_of(std::size_t limit_bytes, std::size_t device_bytes);

// Returns the policies of a usual table, PyTorch's default first. Those with garbage collection do not have a limit yet.
std::vector<AllocatorPolicy> usual_policies();

// Returns all combinations of max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold, and of the page
// heap's options, PyTorch's default first.
std::vector<AllocatorPolicy> policies_of_sweep();

// What of a program decides whether an option has an effect.
struct ProgramShape {
  std::size_t largest_request = 0;
  std::size_t streams = 1;
  std::vector<std::size_t> divisions_without_effect;  // of roundup_power2_divisions: no request is rounded otherwise
};

ProgramShape shape_of(const Trace& trace);

// Returns the policy without the options that have no effect on the program: the two hold the same memory at each event.
//
// max_split_size_mb has none if it is above the largest segment; roundup_power2_divisions, if it rounds no request to another
// size; cross_stream, if there is one stream.
AllocatorPolicy without_idle_options(const AllocatorPolicy& policy, const ProgramShape& shape);

}  // namespace cachalot::tools
