// Histories of every format: a file is read or refused with InvalidArgument, whatever it holds. A history that was read
// is sound: every number names something, and allocations, figures and traces follow from it.
#include "tools/history/history.h"

#include "tests/fuzz/file.h"
#include "tests/tools/recorded_figures.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/replay/replay.h"

namespace cachalot::fuzz {
namespace {

void expect_sound(const tools::History& history, const tools::DeviceHistory& device) {
  for (const tools::HistoryEvent& event : device.events) {
    expect(event.stack < history.stacks.size() && event.details < history.details.size(),
           "an event's stack or details");
    expect(event.stream < history.streams.size() && event.pool < history.pools.size(), "an event's stream or pool");
    expect(tools::name_of(event.action) != nullptr, "an event's action");
    for (const tools::FrameId frame : history.stacks[event.stack]) {
      expect(history.stacks.frame(frame).file < history.texts.size(), "a frame's file");
    }
  }
  for (const tools::HistorySegment& segment : device.segments) {
    expect(segment.first_block + segment.block_count <= device.blocks.size(), "a segment's blocks");
  }
  const tools::Timeline timeline(history, device);
  for (const tools::Allocation& allocation : timeline.allocations()) {
    const bool begins = allocation.begin == tools::Allocation::kBefore || allocation.begin < device.events.size();
    const bool ends = allocation.end == tools::Allocation::kNever || allocation.end < device.events.size();
    expect(begins && ends && allocation.details < history.details.size(), "an allocation's events");
  }
  tools::figures_before(device);
}

// A device that is too small for a history is an answer, and no error.
void replay(const tools::History& history, const tools::DeviceHistory& device) {
  tools::Trace trace;
  if (!is_taken([&] { trace = tools::trace_of(tools::Timeline(history, device)); })) return;
  tools::ReplayOptions options;
  options.device_bytes = std::size_t{1} << 30;
  tools::completes(trace, options, options.device_bytes);
}

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cachalot;
  const fuzz::File file(Bytes(data, size).text());
  tools::History history;
  if (!fuzz::is_taken([&] { history = tools::read_history(file.path()); })) return 0;
  for (const auto* devices : {&history.devices, &history.host}) {
    for (const tools::DeviceHistory& device : *devices) {
      fuzz::expect_sound(history, device);
      fuzz::replay(history, device);
    }
  }
  return 0;
}
