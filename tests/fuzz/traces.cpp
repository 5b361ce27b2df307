// The reader of traces, plain and gzip: it reads a trace or says InvalidArgument. The trace is then sound, and nothing that is
// done with it may be refused.
#include "tests/fuzz/file.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::fuzz {
namespace {

void expect_sound(const tools::Trace& trace) {
  for (const tools::TraceEvent& event : trace.events) {
    expect(event.slot < trace.slots, "an event has a slot that the trace has not");
    expect(event.is_free() || event.stream < trace.streams.size(), "an event has a stream that the trace has not");
  }
}

// Reads the file again with nearly nothing in memory: it is read again where its events are needed.
void expect_same_in_parts(const tools::Trace& trace) {
  const tools::Trace parted = tools::read_trace(tools::InputFile(trace.path, "trace"), /*most_held_events=*/2);
  expect(parted.event_count == trace.event_count && tools::peak_live_bytes(parted) == tools::peak_live_bytes(trace),
         "a trace that stays in its file is another one");
}

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cachalot;
  const fuzz::File file(Bytes(data, size).text());
  tools::Trace trace;
  if (!fuzz::is_taken([&] { trace = tools::read_trace(file.path()); })) return 0;
  fuzz::expect_sound(trace);
  fuzz::expect_same_in_parts(trace);
  return 0;
}
