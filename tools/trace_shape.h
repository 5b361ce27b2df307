// Traces of one program for several values of a parameter: where only sizes differ, and grow about linearly with the value,
// the trace for a value between two others is known without a run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/trace_reader.h"

namespace cachalot::tools {

// Returns the trace with the frees of each unbroken row of frees in the order of their allocations. Programs free in
// another order in each run where that follows from addresses, as the order in a hash table does. A trace that stays in its
// file is returned as it is.
Trace with_ordered_frees(const Trace& trace);

// Whether the same number of allocations is made and freed, in the same order and on the same streams, whatever their
// sizes. False of traces that stay in files.
bool have_one_shape(const Trace& one, const Trace& other);

// A trace, and the value of the parameter for which it was recorded.
struct TraceAt {
  const Trace& trace;
  std::int64_t value = 0;
};

// Returns the trace for a value, by two traces of one shape: each size lies on the straight line through the two sizes, to
// the nearest byte; a size below zero is zero.
Trace on_line(const TraceAt& low, const TraceAt& high, std::int64_t value);

// Bytes by which each event's size may be another than what was computed; 0 for frees.
using Deviations = std::vector<std::uint64_t>;

// Raises each deviation to the difference of the two traces' sizes. They are of one shape, and so are the deviations.
void note_deviations(Deviations& deviations, const Trace& computed, const Trace& real);

// Returns the trace with each size raised, or lowered, by twice its deviation: runs show the deviations of some values.
Trace raised(Trace trace, const Deviations& deviations);
Trace lowered(Trace trace, const Deviations& deviations);

}  // namespace cachalot::tools
