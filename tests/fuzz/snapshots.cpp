// Snapshots, pickles and JSON: they are read or refused with InvalidArgument, whatever they hold. A snapshot that was
// read is reported. histories.cpp has their further uses.
#include <utility>

#include "tests/fuzz/file.h"
#include "tools/history/readers.h"
#include "tools/output/snapshot_report.h"

namespace cachalot::fuzz {
namespace {

constexpr std::size_t kTop = 10;

void report(tools::History history) {
  const tools::Section report = tools::report_of(tools::Timelines(std::move(history)), kTop);
  expect(!tools::text_of(report, tools::Style()).empty(), "a report without a word");
  expect(tools::json_of(report).is_object(), "a report that is no JSON");
}

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cachalot;
  const fuzz::File file(Bytes(data, size).text());
  tools::History history;
  const auto read = [&] { history = tools::read_snapshot_history(tools::InputFile(file.path(), "snapshot")); };
  if (!fuzz::is_taken(read)) return 0;
  fuzz::report(std::move(history));
  return 0;
}
