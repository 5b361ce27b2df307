// The reader of traces, plain and gzip: it reads a trace or says InvalidArgument. What it read is then sound.
#include <sys/mman.h>
#include <unistd.h>

#include "cachalot/errors.h"
#include "tests/fuzz/bytes.h"
#include "tools/trace_reader.h"

namespace cachalot::fuzz {
namespace {

// A file without a name, with a path nevertheless.
class File {
 public:
  explicit File(std::string_view content) : descriptor_(memfd_create("trace", 0)) {
    expect(descriptor_ >= 0, "memfd_create failed");
    expect(write(descriptor_, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "write failed");
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

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
  const fuzz::File file(fuzz::Bytes(data, size).text());
  try {
    fuzz::check(tools::read_trace(file.path()));
  } catch (const InvalidArgument&) {
  }
  return 0;
}
