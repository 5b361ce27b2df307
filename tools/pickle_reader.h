// Reads Python's pickles that hold plain data: None, True and False, numbers, text, bytes, lists, tuples, sets and dicts,
// in protocols 0 to 5. torch.cuda.memory._dump_snapshot writes such.
//
// A pickle is a program, and Python runs it: unpickling a file of a stranger's is running his code. This reader has no
// opcode that names, calls or builds anything of Python's: a pickle that has one is refused there, by the opcode's name
// and position. What the file says of lengths and counts is not believed: memory is taken as its bytes arrive, and no more
// of it for the document than InputFile::memory_limit.
#pragma once

#include <memory>

#include "tools/input_file.h"
#include "tools/plain_document.h"

namespace cachalot::tools {

// One pickle, which fills the file. Throws InvalidArgument, which names file, position and rule.
std::unique_ptr<PlainDocument> read_pickle(InputFile file);

}  // namespace cachalot::tools
