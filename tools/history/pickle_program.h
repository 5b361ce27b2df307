// Carries out the opcodes of a pickle on the machine of a snapshot.
//
// A pickle is a program, and Python runs it: unpickling a file of a stranger's is running his code. This reader has no
// opcode that names, calls or builds anything of Python's: a pickle that has one is refused there, by the opcode's name
// and position. Protocols 0 to 5 are read.
#pragma once

#include "tools/history/pickle_input.h"
#include "tools/history/snapshot_machine.h"

namespace cachalot::tools {

// Runs the pickle until STOP, which ends the file. Throws BrokenPickle for what is no pickle of plain data, and what the
// machine throws.
void run_pickle(PickleInput& input, SnapshotMachine& machine);

}  // namespace cachalot::tools
