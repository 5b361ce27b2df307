#include "tools/history/snapshot_history.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "tools/foreign_files.h"
#include "tools/history/snapshot_builder.h"
#include "tools/history/snapshot_json.h"
#include "tools/history/snapshot_machine.h"
#include "tools/pickle_input.h"
#include "tools/pickle_program.h"
#include "tools/quoted.h"
#include "tools/snapshot_reader.h"

namespace cachalot::tools {
namespace {

History of_pickle(InputFile file) {
  const std::string path = file.path();
  SnapshotBuilder builder(file.memory_limit());
  PickleInput input(std::move(file), builder.budget());
  SnapshotMachine machine(input, builder);
  try {
    PickleProgram(input, machine).run();
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

History read_snapshot_history(InputFile file) {
  const std::string path = file.path();
  require_snapshot(file);
  const unsigned char first = file.peek().value_or(0);
  const bool is_json = first == '{' || first == '[';  // a list in a pickle begins with ']'
  History history = is_json ? of_json(std::move(file)) : of_pickle(std::move(file));
  history.path = path;
  history.format = is_json ? HistoryFormat::torch_json : HistoryFormat::torch_pickle;
  return history;
}

}  // namespace cachalot::tools
