// Snapshots, pickles and JSON: they are read or refused with InvalidArgument, whatever they hold. What was read is reported
// and its history is replayed; of that only the history may be refused, where it holds nothing to replay.
#include "tools/snapshot_reader.h"

#include <vector>

#include "tests/fuzz/file.h"
#include "tools/replay.h"
#include "tools/snapshot_report.h"
#include "tools/snapshot_traces.h"

namespace cachalot::fuzz {
namespace {

constexpr std::size_t kTop = 10;

void report(const tools::TorchSnapshot& snapshot) {
  expect(!tools::to_text(snapshot, kTop).empty(), "a report without a word");
  expect(tools::to_json(snapshot, kTop).front() == '{', "a report that is no JSON");
}

// A device that is too small for a history is an answer, and no error.
void replay(const tools::TorchSnapshot& snapshot) {
  std::vector<tools::Trace> traces;
  if (!is_taken([&] { traces = tools::traces_of(snapshot); })) return;
  for (const tools::Trace& trace : traces) {
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
  tools::TorchSnapshot snapshot;
  const auto read = [&] { snapshot = tools::read_snapshot(tools::InputFile(file.path(), "snapshot")); };
  if (!fuzz::is_taken(read)) return 0;
  fuzz::report(snapshot);
  fuzz::replay(snapshot);
  return 0;
}
