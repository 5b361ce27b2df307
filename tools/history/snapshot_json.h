// Snapshots in JSON.
#pragma once

#include "tools/history/snapshot_builder.h"
#include "tools/input_file.h"

namespace cachalot::tools {

// Reads one JSON text, which fills the file, into the builder, and returns what it is. Throws InvalidArgument, which names
// file, position and rule.
Part read_snapshot_json(InputFile& file, SnapshotBuilder& builder);

}  // namespace cachalot::tools
