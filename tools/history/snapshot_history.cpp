#include "tools/history/snapshot_history.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "tools/foreign_files.h"
#include "tools/history/pickle_input.h"
#include "tools/history/pickle_program.h"
#include "tools/history/snapshot_builder.h"
#include "tools/history/snapshot_json.h"
#include "tools/history/snapshot_machine.h"
#include "tools/history/text_histories.h"

namespace cachalot::tools {
namespace {

// Protocol 2 and later begin with PROTO; the dicts and lists of 0 and 1 with a mark or with themselves.
bool begins_pickle(unsigned char byte) {
  const std::string_view first = "\x80(}]";
  return first.find(static_cast<char>(byte)) != std::string_view::npos;
}

// A list in JSON begins with '[', one in a pickle with ']'.
bool begins_json(unsigned char byte) { return byte == '{' || byte == '['; }

// Throws InvalidArgument, which says what the file is, unless it begins as a snapshot.
void require_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  const std::string trouble = file.trouble();
  CACHALOT_REQUIRE(trouble.empty(), "{}: {}", file.path(), trouble);
  CACHALOT_REQUIRE(first.has_value(), "{}: the file is empty", file.path());
  const std::string foreign = foreign_format(file.begin(), "memory snapshot");
  CACHALOT_REQUIRE(foreign.empty(), "{}: {}", file.path(), foreign);
  const std::optional<HistoryFormat> text = text_format(file.begin());
  CACHALOT_REQUIRE(text != HistoryFormat::cachalot_trace,
                   "{}: is an allocation trace, not a memory snapshot: `cachalot replay` takes traces", file.path());
  CACHALOT_REQUIRE(text != HistoryFormat::rmm_csv,
                   "{}: is a log of RMM, not a memory snapshot: `cachalot replay` takes logs", file.path());
  CACHALOT_REQUIRE(is_snapshot(file), "{}: {}", file.path(), unknown_format(file.begin()));
}

History of_pickle(InputFile file) {
  const std::string path = file.path();
  SnapshotBuilder builder(file.memory_limit());
  PickleInput input(std::move(file));
  SnapshotMachine machine(input, builder);
  try {
    run_pickle(input, machine);
    return builder.finish(machine.result());
  } catch (const BrokenPickle& broken) {
    throw InvalidArgument(fmt::format("{}: {}", path, broken.what()));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: byte {}: {}", path, input.opcode_at(), error.what()));
  }
}

History of_json(InputFile file) {
  SnapshotBuilder builder(file.memory_limit());
  try {
    const Part root = read_snapshot_json(file, builder);
    return builder.finish(root);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file.path(), error.what()));
  }
}

}  // namespace

bool is_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  return first && (begins_json(*first) || begins_pickle(*first));
}

History read_snapshot_history(InputFile file) {
  const std::string path = file.path();
  require_snapshot(file);
  const bool is_json = begins_json(file.peek().value_or(0));
  History history = is_json ? of_json(std::move(file)) : of_pickle(std::move(file));
  history.path = path;
  history.format = is_json ? HistoryFormat::torch_json : HistoryFormat::torch_pickle;
  return history;
}

}  // namespace cachalot::tools
