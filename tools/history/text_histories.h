// Histories of text files: logs and traces of other tools. Each reader throws InvalidArgument, which names file, line and
// rule. A last line that is cut off, of a program that died, is passed over.
#pragma once

#include <optional>
#include <string_view>

#include "tools/history/history.h"
#include "tools/input_file.h"

namespace cachalot::tools {

// Returns the format of a text file that begins so; nullopt: it is none of those below.
std::optional<HistoryFormat> text_format(std::string_view begin);

// RMM's logging_resource_adaptor, of RMM 22 to 26: Thread,Time,Action,Pointer,Size,Stream. A failure becomes an oom event,
// of which the free bytes are not known: 0. The device is that of the name, as RMM makes it: log.dev1.csv, log.csv.dev1.
History read_rmm_history(InputFile file);

// cachalot's allocation traces (trace_reader.h). The time is the event's number.
History read_trace_history(InputFile file);

}  // namespace cachalot::tools
