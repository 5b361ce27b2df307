// PyTorch's snapshots as histories: the pickles of torch.cuda.memory._dump_snapshot and torch.cuda.memory_snapshot, of
// PyTorch 2.1 to 2.15, and the JSON of cachalot's own snapshots. The file is read once and never held: what is complete
// becomes part of the history.
//
// The file may be a stranger's. A pickle is a program, and Python runs it; this reader has no opcode that names, calls or
// builds anything of Python's. Keys that are not known are passed over, as other versions of PyTorch have others.
#pragma once

#include "tools/history/history.h"
#include "tools/input_file.h"

namespace cachalot::tools {

// Returns whether the file begins as a pickle or as JSON does; a trace does not.
bool is_snapshot(InputFile& file);

// Throws InvalidArgument, which names file, place and rule; also for a history of another format, such as a trace.
History read_snapshot_history(InputFile file);

}  // namespace cachalot::tools
