// A tool that reads NVTX: it writes down what it is told. NVTX finds it in this program.
#pragma once

#include <string>
#include <vector>

namespace cachalot {

// Returns the notifications since the last call, in order. The first handle after a call of forget_handles is #1.
std::vector<std::string> take_heard();
void forget_handles();

}  // namespace cachalot
