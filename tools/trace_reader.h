// Reads allocation traces: text, plain or gzip, one event a line, every line ended by a newline.
//
//   a,<id>,<requested bytes>,<stream>    allocates
//   f,<id>                               frees, on the allocation's stream
//
// An id is any number of 64 bits and is used for one allocation only; what is alive at the end stays alive.
// The reader is strict: the first line that breaks a rule is an error that names file, line, value and rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cachalot/device.h"

namespace cachalot::tools {

// One line of a trace, ready to be replayed: ids have become slots, small numbers that are used again once their
// allocation is freed, so that a replay holds its pointers in an array no larger than the most that are alive at once.
struct TraceEvent {
  static constexpr std::uint32_t kFree = std::numeric_limits<std::uint32_t>::max();

  std::uint64_t bytes = 0;   // requested; 0 for a free
  std::uint32_t slot = 0;    // < Trace::slots
  std::uint32_t stream = 0;  // index in Trace::streams, or kFree

  bool is_free() const { return stream == kFree; }
};

struct Trace {
  std::string path;
  std::vector<TraceEvent> events;  // event i is line i + 1
  std::vector<Stream> streams;     // distinct; the trace's stream 0 is nullptr
  std::size_t slots = 0;
};

// Throws InvalidArgument. Reads in pieces: besides the result it holds one entry an id.
Trace read_trace(const std::string& path);

// The most bytes alive at once if every allocation succeeds: no device that completes the trace can be smaller.
std::size_t peak_live_bytes(const Trace& trace);

}  // namespace cachalot::tools
