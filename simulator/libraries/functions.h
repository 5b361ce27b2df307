// The report on the libraries' functions that do nothing.
#pragma once

#include "cachalot/version.h"

CACHALOT_BEGIN
class JsonWriter;
CACHALOT_END

namespace cachalot::simulator {

// Writes an array of the names of the libraries that a program has asked for the size of a workspace, which is not known.
void write_unknown_workspaces(JsonWriter& json);

}  // namespace cachalot::simulator
