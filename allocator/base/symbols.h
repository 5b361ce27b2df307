// Names for code: libbacktrace over the debug information, and the dynamic linker's symbols where that says nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "cachalot/call_stack.h"

CACHALOT_BEGIN

// The calls that are underway at a return address: one, and before it those that the compiler inlined there, innermost
// first. Never empty. Thread-safe; slow, above all the first time.
std::vector<CallFrame> symbolize(std::uintptr_t return_address);

CACHALOT_END
