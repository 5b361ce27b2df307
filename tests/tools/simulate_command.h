// `cachalot simulate` as its users run it, and a program for it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/tools/run_command.h"

namespace cachalot::tools {

inline Outcome simulate(const std::string& arguments) {
  return run_command(std::string("'") + CACHALOT_COMMAND + "' simulate " + arguments);
}

// The command line of the CUDA program (allocating_program.cpp), on a simulated GPU.
inline const std::string kProgram = CACHALOT_SIMULATED_PROGRAM;
#define NEEDS_THE_SIMULATOR() \
  if (kProgram.empty()) GTEST_SKIP() << "built without the simulated CUDA runtime"

}  // namespace cachalot::tools
