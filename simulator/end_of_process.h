// The end of a process whose other threads still call CUDA.
#pragma once

#include <atomic>

namespace cachalot::simulator {

// The thread that ends the process, by its id; 0 before the end.
extern std::atomic<int> ending_thread;

// From now on, when the process ends, threads but the one that ends it wait in their next call. PyTorch's threads that watch
// NCCL go on while static objects are destroyed, and end the process with SIGABRT when they use one. Only the first call
// does something. Registered late: what is made after it is destroyed before.
void hold_other_threads_at_end();

// Blocks the caller for at most five seconds, if it is one of them: the end may wait for it.
void wait_for_end();

}  // namespace cachalot::simulator
