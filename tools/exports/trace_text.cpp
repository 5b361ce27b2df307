// A history as a trace of ours (trace_reader.h).
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tools/exports/export_parts.h"
#include "tools/exports/exports.h"
#include "tools/history/allocations.h"

namespace cachalot::tools {
namespace {

// A pool's memory serves that pool alone, as in trace_of: each pair of stream and pool is a stream of the trace. The
// default stream with the default pool is stream 0.
class StreamNumbers {
 public:
  std::size_t operator[](const Allocation& allocation) {
    return numbers_.try_emplace({allocation.pool, allocation.stream}, numbers_.size()).first->second;
  }

 private:
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::size_t> numbers_{{{0, 0}, 0}};
};

}  // namespace

void write_trace_text(const History& history, const ExportOptions& options, OutputFile& out) {
  const DeviceHistory& device = only_device_of(history, options, "a trace");
  const std::vector<Allocation> allocations = allocations_of(device);
  CACHALOT_REQUIRE(!allocations.empty(), "{}: the history has no allocation", history.path);
  StreamNumbers streams;
  for (const AllocationStep& step : steps_of(allocations)) {
    const Allocation& allocation = allocations[step.allocation];
    if (step.is_free) {
      out.print("f,{}\n", step.allocation + 1);
    } else {
      out.print("a,{},{},{}\n", step.allocation + 1, allocation.bytes, streams[allocation]);
    }
  }
}

}  // namespace cachalot::tools
