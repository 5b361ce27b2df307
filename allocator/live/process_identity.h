// What tells a process from others, and from a later one with its number, as /proc has it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cachalot/version.h"

CACHALOT_BEGIN

// Returns when the process began, in clock ticks from boot; nullopt if there is no such process.
std::optional<std::uint64_t> process_start(pid_t process);
// Returns the number of this process's namespace of process ids; 0 if it is unknown.
std::uint64_t pid_namespace();
// Returns this process's words, separated by spaces.
std::string process_command();

CACHALOT_END
