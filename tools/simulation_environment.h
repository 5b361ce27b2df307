// The simulated CUDA runtime's files, and the variables with which programs find it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/simulation.h"

namespace cachalot::tools {

// The file of `shared` of CACHALOT_SIM, in the folder for reports.
inline constexpr const char* kSharedMemory = "devices";

// Returns the folder of the simulator: what CACHALOT_SIMULATOR names, otherwise beside this command, built or installed.
// Throws InvalidArgument where it is not.
std::filesystem::path find_simulator();

// Returns the variables, as "NAME=value", of a program whose processes report into a folder.
std::vector<std::string> environment_of_run(const SimulationOptions& options, const std::filesystem::path& simulator,
                                            const std::filesystem::path& reports);

// Returns the variables of a process that forks such programs: the runtime is there, and nothing is observed.
std::vector<std::string> environment_of_fork_server();

// Returns the variables of a process that finds the simulator's modules of Python, and runs no program.
std::vector<std::string> environment_of_helper();

}  // namespace cachalot::tools
