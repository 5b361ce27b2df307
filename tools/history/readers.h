// The readers of the formats of history.h's read_history. Each throws InvalidArgument, which names file, place and rule; also for
// a history of another format.
#pragma once

#include <optional>
#include <string_view>

#include "tools/base/input_file.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// PyTorch's snapshots as histories: the pickles of torch.cuda.memory._dump_snapshot and torch.cuda.memory_snapshot, of
// PyTorch 2.1 to 2.15, and the JSON of cachalot's own snapshots. The file is read once and never held: what is complete
// becomes part of the history.
//
// The file may be a stranger's. Keys that are not known are passed over, as other versions of PyTorch have others.

// Returns whether the file begins as a pickle or as JSON does; a trace does not.
bool is_snapshot(InputFile& file);

History read_snapshot_history(InputFile file);

// Reads a pickle, without path and format of the history; messages name the byte.
//
// A pickle is a program, and Python runs it: unpickling an unknown file runs its code. This reader has no opcode that
// names, calls or builds anything of Python's: a pickle that has one is refused there, by the opcode's name and
// position. Protocols 0 to 5 are read.
History read_pickle(InputFile file);

// Histories of text files: logs and traces of other tools. Messages name the line. A last line that is cut off, of a program
// that died, is passed over.

// Returns the format of a text file that begins so; nullopt: it has no format of those below.
std::optional<HistoryFormat> text_format(std::string_view begin);

// RMM's logging_resource_adaptor, of RMM 22 to 26: Thread,Time,Action,Pointer,Size,Stream. A failure becomes an oom event,
// of which the free bytes are not known: 0. The device is that of the name, as RMM makes it: log.dev1.csv, log.csv.dev1.
History read_rmm_history(InputFile file);

// cachalot's allocation traces (trace_reader.h). The time is the event's number.
History read_trace_history(InputFile file);

}  // namespace cachalot::tools
