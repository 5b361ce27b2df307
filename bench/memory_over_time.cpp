// Memory over the events of a trace, for several heaps side by side, as CSV: docs/pictures/memory_over_time.py draws it.
//
//   bench/memory_over_time [TRACE [CONFIG…]]      default: data/traces/gpt2_varlen.csv.gz heap:segments heap:pages
//
// A line covers a stretch of events: the number of its last event, and in bytes the largest requested memory and, for
// each CONFIG, the largest reserved memory in the stretch. The device lags behind the host as in `cachalot replay`.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::bench {
namespace {

constexpr std::size_t kLines = 600;  // wider than any picture

struct Peaks {
  std::int64_t requested = 0;
  std::int64_t reserved = 0;
};

// The peaks of each stretch of the trace, on an allocator with these options.
std::vector<Peaks> measure(const tools::Trace& trace, const std::string& config, std::size_t events_per_line) {
  tools::ReplayOptions options;
  options.config = config;
  tools::ReplayWorld world(trace, options);
  std::vector<Peaks> lines;
  for (std::size_t event = 0; event < trace.event_count; ++event) {
    if (event % events_per_line == 0) world.allocator().reset_peak_stats();
    world.play_with_work(event);
    if (event % events_per_line != events_per_line - 1 && event != trace.event_count - 1) continue;
    const DeviceStats stats = world.allocator().memory_stats();
    lines.push_back({stats.requested_bytes.all.peak, stats.reserved_bytes.all.peak});
  }
  world.free_all();
  return lines;
}

void print_lines(const std::string& path, const std::vector<std::string>& configs) {
  const tools::Trace trace = tools::read_trace(path);
  if (!trace.is_held()) throw InvalidArgument(path + ": too long a trace to be drawn");
  const std::size_t events_per_line = std::max<std::size_t>(1, trace.event_count / kLines);
  std::vector<std::vector<Peaks>> columns;
  for (const std::string& config : configs) columns.push_back(measure(trace, config, events_per_line));

  fmt::print("event,requested,{}\n", fmt::join(configs, ","));
  for (std::size_t line = 0; line < columns.front().size(); ++line) {
    fmt::print("{},{}", std::min((line + 1) * events_per_line, trace.event_count) - 1, columns[0][line].requested);
    for (const auto& column : columns) fmt::print(",{}", column[line].reserved);
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const std::string path = arguments.empty() ? CACHALOT_DATA_DIR "/traces/gpt2_varlen.csv.gz" : arguments.front();
  std::vector<std::string> configs(arguments.begin() + std::min<std::ptrdiff_t>(1, std::ssize(arguments)),
                                   arguments.end());
  if (configs.empty()) configs = {"heap:segments", "heap:pages"};
  try {
    cachalot::bench::print_lines(path, configs);
  } catch (const std::exception& error) {
    fmt::print(stderr, "memory_over_time: {}\n", error.what());
    return 2;
  }
}
