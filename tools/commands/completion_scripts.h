// Completion scripts for shells, made of the declarations.
#pragma once

#include <string>
#include <string_view>

#include "tools/commands/command.h"

namespace cachalot::tools {

std::string bash_completion(const Declarations& declarations);
std::string zsh_completion(const Declarations& declarations);
std::string fish_completion(const Declarations& declarations);

}  // namespace cachalot::tools
