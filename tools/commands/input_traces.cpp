#include "tools/commands/input_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/gpu_models.h"
#include "tools/commands/command.h"
#include "tools/commands/with_file.h"
#include "tools/foreign_files.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"
#include "tools/history/snapshot_history.h"
#include "tools/history/text_histories.h"
#include "tools/replay.h"

namespace cachalot::tools {
namespace {

// Whether it is a file with a history that is not a trace of ours already.
bool has_history(InputFile& file) {
  const std::optional<HistoryFormat> text = text_format(file.begin());
  return text ? *text != HistoryFormat::cachalot_trace : is_snapshot(file);
}

std::vector<Trace> traces_in(InputFile file) {
  if (!has_history(file)) {
    const std::string foreign = foreign_format(file.begin(), "trace or a memory snapshot");
    CACHALOT_REQUIRE(foreign.empty(), "{}: {}", file.path(), foreign);
    const std::string_view begin = file.begin();  // empty: the file has nothing, or cannot be read
    const bool may_be_trace = begin.empty() || begin.starts_with("a,") || begin.starts_with("f,");
    CACHALOT_REQUIRE(may_be_trace, "{}: {}", file.path(), unknown_format(begin));
    return {read_trace(std::move(file))};
  }
  const History history = read_history(std::move(file));
  std::vector<Trace> traces = traces_of(history);
  if (history.unknown_actions > 0) {
    tell(fmt::format("cachalot: {}: left out of the history: {}\n", history.path,
                     unknown_actions_text(history.unknown_actions)));
  }
  return traces;
}

}  // namespace

std::vector<Trace> read_all_traces(const std::vector<std::string>& paths) {
  std::vector<Trace> traces;
  for (const std::string& path : paths) {
    std::ranges::move(with_file(path, "trace", [](InputFile file) { return traces_in(std::move(file)); }),
                      std::back_inserter(traces));
  }
  return traces;
}

void declare_traces(CLI::App& app, std::vector<std::string>& paths) {
  app.add_option("TRACE", paths, "Traces, or memory snapshots of PyTorch or cachalot with a history")->required();
}

void declare_device_size(CLI::App& app, DeviceSize& size) {
  app.add_option("--gpu", size.gpu, "Play on the memory of this GPU, such as l4 (`cachalot gpus` lists them)")
      ->type_name("GPU");
  app.add_option("--device-memory", size.memory,
                 fmt::format("Memory of the simulated device, such as 24GiB, 24GB or 24000M, all in steps of 1024 "
                             "(default: {}MiB)",
                             ReplayOptions().device_bytes >> 20))
      ->type_name("SIZE");
}

void declare_json_lines(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "Print one JSON object for each trace, each on one line");
}

std::size_t bytes_of_option(std::string_view option, const std::string& size) {
  try {
    return parse_bytes(size);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", option, error.what()));
  }
}

std::size_t device_bytes(const DeviceSize& size, std::size_t otherwise, std::string_view memory_option) {
  CACHALOT_REQUIRE(!size.gpu || !size.memory, "--gpu {} and {} {} both say how large the device is: give one",
                   *size.gpu, memory_option, *size.memory);
  if (size.gpu) return simulator::find_gpu_model(*size.gpu).memory_bytes;
  return size.memory ? bytes_of_option(memory_option, *size.memory) : otherwise;
}

}  // namespace cachalot::tools
