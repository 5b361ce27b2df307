// Reads the pickles of snapshots.
//
// A pickle is a program, and Python runs it: unpickling a file of a stranger's is running his code. This reader has no
// opcode that names, calls or builds anything of Python's: a pickle that has one is refused there, by the opcode's name
// and position. Protocols 0 to 5 are read.
#pragma once

#include "tools/history/history.h"
#include "tools/input_file.h"

namespace cachalot::tools {

// Returns the history that the pickle tells, without path and format. Throws InvalidArgument, which names file, byte and rule.
History read_pickle(InputFile file);

}  // namespace cachalot::tools
