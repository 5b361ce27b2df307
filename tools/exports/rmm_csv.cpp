// A history as the log of RMM's logging_resource_adaptor, which RMM's replay benchmark plays. It has no pools.
#include <cstdint>
#include <vector>

#include "tools/exports/export_parts.h"
#include "tools/exports/exports.h"
#include "tools/history/allocations.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

constexpr int kThread = 1;  // a history does not say which thread it was

// The log has the time of day; that of a history without times counts from midnight.
struct TimeOfDay {
  std::uint64_t hours, minutes, seconds, microseconds;

  explicit TimeOfDay(std::int64_t time_us) {
    constexpr std::int64_t kDay = std::int64_t{24} * 3600 * 1'000'000;
    const auto of_day = static_cast<std::uint64_t>((time_us % kDay + kDay) % kDay);
    microseconds = of_day % 1'000'000;
    seconds = of_day / 1'000'000 % 60;
    minutes = of_day / 60'000'000 % 60;
    hours = of_day / 3'600'000'000;
  }
};

class RmmWriter {
 public:
  RmmWriter(const History& history, const DeviceHistory& device, OutputFile& out)
      : history_(history), device_(device), out_(out) {}

  void write() {
    out_.write("Thread,Time,Action,Pointer,Size,Stream\n");
    const std::vector<Allocation> allocations = allocations_of(device_);
    for (const AllocationStep& step : steps_of(allocations)) {
      write_failures(step.event == AllocationStep::kBefore ? 0 : step.event);
      const Allocation& allocation = allocations[step.allocation];
      begin_line(step.event, step.is_free ? "free" : "allocate");
      out_.print("0x{:x},{}", allocation.address, allocation.bytes);
      end_line(allocation.stream);
    }
    write_failures(device_.events.size());
  }

 private:
  // Those before the event that have not been written.
  void write_failures(std::size_t event) {
    for (; next_failure_ < event; ++next_failure_) {
      const HistoryEvent& failure = device_.events[next_failure_];
      if (failure.action != Action::oom) continue;
      begin_line(next_failure_, "allocate failure");
      out_.print("(nil),{}", failure.bytes);
      end_line(failure.stream);
    }
  }

  void begin_line(std::size_t event, std::string_view action) {
    if (event == AllocationStep::kBefore) event = 0;
    const TimeOfDay time(event < device_.events.size() ? device_.events[event].time_us : 0);
    out_.print("{},{:02}:{:02}:{:02}.{:06},{},", kThread, time.hours, time.minutes, time.seconds, time.microseconds,
               action);
  }

  void end_line(std::uint16_t stream) {
    const std::uint64_t handle = history_.streams[stream];
    handle == 0 ? out_.print(",0\n") : out_.print(",0x{:x}\n", handle);
  }

  const History& history_;
  const DeviceHistory& device_;
  OutputFile& out_;
  std::size_t next_failure_ = 0;
};

}  // namespace

void write_rmm_csv(const History& history, const ExportOptions& options, OutputFile& out) {
  RmmWriter(history, only_device_of(history, options, "RMM's log"), out).write();
}

}  // namespace cachalot::tools
