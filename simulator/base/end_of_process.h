// The end of a process: whose other threads still call CUDA, or that a signal ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace cachalot::simulator {

// The thread that ends the process, by its id; 0 before the end.
extern std::atomic<int> ending_thread;

// From now on, when the process ends, threads but the one that ends it wait in their next call. PyTorch's threads that watch
// NCCL go on while static objects are destroyed, and end the process with SIGABRT when they use one. Only the first call
// does something. Registered late: objects made after it are destroyed before.
void hold_other_threads_at_end();

// Blocks the caller for at most five seconds, if it is one of them: the end may wait for it.
void wait_for_end();

// A process that SIGTERM, SIGINT, SIGSEGV, _exit() or _Exit() ends, or that kills itself, writes its report first, and then ends as it
// would have. So does one that gets request_to_end(): it ends as killed.

// Calls `write` with true before one of these ends the process. A signal that the program handles or ignores when this is called,
// or handles later, is left to the program. Starts a thread, which does the writing: a handler of signals may not take locks.
// The thread also calls it each second, with false, as SIGKILL leaves no time for a report. To be called once.
void write_before_sudden_end(void (*write)(bool is_final));

// From now on, calls `write` after that as well, in any thread, unless it is null.
void write_more_before_sudden_end(void (*write)());

// To be called before the process kills itself.
void write_before_kill();

// Returns the status with which the process ends, as exit() and _exit() were told; nullopt before, and where a signal ends it.
// Any thread may call it.
std::optional<int> exit_status();

// Returns the address whose access has raised SIGSEGV, which ends the process; 0 before that. Any thread may call it.
std::uintptr_t fault_address();

}  // namespace cachalot::simulator
