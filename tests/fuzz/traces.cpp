// The reader of traces, plain and gzip: it reads a trace or says InvalidArgument. What it read is then sound.
#include "tests/fuzz/file.h"
#include "tools/trace_reader.h"

namespace cachalot::fuzz {
namespace {

void check(const tools::Trace& trace) {
  for (const tools::TraceEvent& event : trace.events) {
    expect(event.slot < trace.slots, "an event has a slot that the trace has not");
    expect(event.is_free() || event.stream < trace.streams.size(), "an event has a stream that the trace has not");
  }
  tools::peak_live_bytes(trace);
}

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cachalot;
  const fuzz::File file(Bytes(data, size).text());
  fuzz::is_taken([&] {
    fuzz::check(tools::read_trace(file.path()));
    const tools::Trace parted = tools::read_trace(tools::InputFile(file.path(), "trace"), /*most_held_events=*/2);
    fuzz::expect(tools::peak_live_bytes(parted) == tools::peak_live_bytes(tools::read_trace(file.path())),
                 "a trace that stays in its file is another one");
  });
  return 0;
}
