// CUDA runtimes that programs and libraries have linked in (nvcc's default, -cudart static). Their functions are not found by
// the dynamic linker, so that no preloaded library takes their place; but where a file has kept its symbols, each of them is
// overwritten with a jump to the simulated one.
#pragma once

namespace cachalot::simulator {

// Does so in what was loaded since the last call; where nothing was, it costs a look at two counters.
void hook_static_runtimes();

// Says, once a library, that the runtime in this one has lost its symbols. `address` is in the library.
void note_hidden_runtime(const void* address);

}  // namespace cachalot::simulator
