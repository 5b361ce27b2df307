#include "tools/simulation/recorded_programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/analysis/program_settings.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/analysis/timeline.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

// Returns, for the last allocation that failed, the reserved memory, and if the device lacked memory, the free memory there. It
// is not less than was ever reserved: the cache was given back before the allocation failed.
std::optional<std::size_t> usable_bytes_of(const DeviceHistory& device) {
  std::optional<std::int64_t> at_failure;
  std::int64_t reserved = reserved_at_end(device);
  std::int64_t most = reserved;
  for (auto event = device.events.rbegin(); event != device.events.rend(); ++event) {
    if (event->action == Action::oom && !at_failure) {
      const bool device_lacked = event->address < event->bytes;  // otherwise a limit did
      at_failure = reserved + (device_lacked ? static_cast<std::int64_t>(event->address) : 0);
    }
    reserved -= reserved_change(*event);
    most = std::max(most, reserved);
  }
  if (!at_failure || most == 0) return std::nullopt;  // without segments, as in a log of RMM, it is not known
  return static_cast<std::size_t>(std::max({*at_failure, most, std::int64_t{0}}));
}

bool ends_with_failure(const DeviceHistory& device) {
  const auto last = std::ranges::find_if(device.events.rbegin(), device.events.rend(), [](const HistoryEvent& event) {
    return event.action == Action::oom || event.action == Action::alloc;
  });
  return last != device.events.rend() && last->action == Action::oom;
}

// Says that the history is too short. If nearly all blocks are older than the history, a replay packs these anew, which
// the program did not do.
std::string too_short_text(const Timeline& timeline) {
  constexpr std::size_t kFewestPerOlder = 10;  // of blocks that are older, for each that the history made
  const std::size_t older = timeline.earlier();
  const std::size_t made = timeline.allocations().size() - older;
  if (older == 0 || made * kFewestPerOlder >= older) return "";
  return fmt::format(
      "No advice: the history has {}, and {} older than it, so that it does not tell how the program came to its "
      "memory. Record from the program's start.",
      format_count(timeline.events().size(), "event"), older == 1 ? "1 block is" : fmt::format("{} blocks are", older));
}

RecordedProgram program_of(const Timeline& timeline) {
  const History& history = timeline.history();
  const DeviceHistory& device = timeline.device();
  RecordedProgram recorded;
  AdvisedProgram& program = recorded.program;
  program.file = history.path;
  program.device = device.device;
  program.trace = std::make_shared<const Trace>(program_trace_of(timeline));
  program.recorded_reserved_bytes = recorded_reserved_bytes(device);
  program.ends_with_failure = ends_with_failure(device);
  program.policy = policy_of_settings(history.settings);
  if (!program.recorded_reserved_bytes) program.too_short = too_short_text(timeline);
  if (program.trace->as_recorded && program.policy == Policy())
    program.recorded_reserved_bytes = recorded_start(timeline)->peak_reserved_bytes;
  recorded.usable_bytes = usable_bytes_of(device);
  for (const DeviceFacts& facts : history.facts) {
    if (facts.device != device.device) continue;
    recorded.device_bytes = facts.total_bytes;
    recorded.context_bytes = facts.context_bytes;
  }
  return recorded;
}

}  // namespace

std::vector<RecordedProgram> recorded_programs(InputFile file) {
  std::vector<RecordedProgram> programs;
  if (looks_like_trace(file.begin())) {
    AdvisedProgram& program = programs.emplace_back().program;
    program.file = file.path();
    program.trace = std::make_shared<const Trace>(read_trace(std::move(file)));
    return programs;
  }
  const History history = read_history(std::move(file));
  for (const DeviceHistory& device : history.devices) {
    if (has_trace(device)) programs.push_back(program_of(Timeline(history, device)));
  }
  CACHALOT_REQUIRE(!programs.empty(),
                   "{} has no history: record it with torch.cuda.memory._record_memory_history() before "
                   "torch.cuda.memory._dump_snapshot()",
                   history.path);
  return programs;
}

}  // namespace cachalot::tools
