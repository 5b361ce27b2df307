// CUDA runtimes that programs and libraries have linked in (nvcc's default, -cudart static). Their functions are not found by
// the dynamic linker, so that no preloaded library takes their place; but where a file has kept its symbols, or has no kernels
// (stripped_runtime.cpp), each of them is overwritten with a jump to the simulated one. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace cachalot::simulator {

class ElfFile;

// Redirects the runtimes of libraries loaded since the last call, and lets their kernels and variables be registered again.
// Where nothing was loaded, it costs a look at two counters.
void hook_static_runtimes();

// Prints, once per library, that the runtime in the library at `address` finds no GPU.
void note_hidden_runtime(const void* address);

struct RuntimeFunction {
  std::string_view name;  // text of the file
  std::uint64_t offset;   // from where the library is loaded
};

// Finds a CUDA runtime that the file has linked in without its symbols. Returns none if there is no such, or if the file has kernels.
std::vector<RuntimeFunction> functions_of_stripped_runtime(const ElfFile& file);

}  // namespace cachalot::simulator
