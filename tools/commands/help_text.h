// The help of the whole command line and of each command.
#pragma once

#include <string>

#include "tools/commands/command.h"

namespace cachalot::tools {

std::string help_text(const Declarations& declarations, const Style& style);
std::string help_text(const DeclaredCommand& command, const Style& style);

}  // namespace cachalot::tools
