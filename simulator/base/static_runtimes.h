// CUDA runtimes that programs and libraries have linked in (nvcc's default, -cudart static). Their functions are not found by
// the dynamic linker, so that no preloaded library takes their place; but where a file has kept its symbols, each of them is
// overwritten with a jump to the simulated one. Thread-safe.
#pragma once

namespace cachalot::simulator {

// Redirects the runtimes of libraries loaded since the last call, and lets their kernels and variables be registered again.
// Where nothing was loaded, it costs a look at two counters.
void hook_static_runtimes();

// Prints, once per library, that the runtime in the library at `address` finds no GPU.
void note_hidden_runtime(const void* address);

}  // namespace cachalot::simulator
