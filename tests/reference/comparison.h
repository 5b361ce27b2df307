// The allocator and the reference heap side by side.
#pragma once

#include <string>

#include "tests/programs/program.h"

namespace cachalot {

// Runs the program on the allocator over simulated devices and on the reference heap. Returns "" or the first
// operation after which they differ, and how.
std::string compare_with_reference(const Program& program);

}  // namespace cachalot
