// A process that SIGTERM, SIGINT or SIGSEGV ends writes its report first, and then dies by the signal as it would have.
#pragma once

#include <cstdint>

namespace cachalot::simulator {

// Calls `write` before a signal ends the process. A signal that the program handles or ignores when this is called, or
// handles later, is left to the program. Starts a thread, which does the writing: a handler of signals may not take locks.
// To be called once.
void write_before_ending_signals(void (*write)());

// Returns the address whose access has raised SIGSEGV, which ends the process; 0 before that. Any thread may call it.
std::uintptr_t fault_address();

}  // namespace cachalot::simulator
