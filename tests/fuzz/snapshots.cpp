// Snapshots, pickles and JSON: they are read or refused with InvalidArgument, whatever they hold. What was read is reported
// and its history is replayed.
#include "tools/snapshot_reader.h"

#include "tests/fuzz/file.h"
#include "tools/replay.h"
#include "tools/snapshot_report.h"
#include "tools/snapshot_traces.h"

namespace cachalot::fuzz {
namespace {

constexpr std::size_t kTop = 10;

void look_at(const tools::TorchSnapshot& snapshot) {
  expect(!tools::to_text(snapshot, kTop).empty(), "a report without a word");
  expect(tools::to_json(snapshot, kTop).front() == '{', "a report that is no JSON");
  for (const tools::Trace& trace : tools::traces_of(snapshot)) {
    expect(trace.is_held() && trace.event_count > 0, "a history without events");
    tools::ReplayOptions options;
    options.device_bytes = std::size_t{1} << 30;
    tools::completes(trace, options, options.device_bytes);
  }
}

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cachalot;
  const fuzz::File file(Bytes(data, size).text());
  fuzz::is_taken([&] { fuzz::look_at(tools::read_snapshot(tools::InputFile(file.path(), "snapshot"))); });
  return 0;
}
