// The Python code that a thread runs, for call stacks.
#pragma once

#include <cstddef>

#include "cachalot/call_stack.h"

namespace cachalot::simulator {

// A ScriptFrameProvider (cachalot/call_stack.h) that takes no lock: calls come from inside of allocators' locks, where the GIL
// must not be waited for. It has Python write down the thread's frames as its faulthandler does, which needs no GIL. Pythons
// that do not export that (3.13 and later) have no frames.
// Requires: no two threads call it at once.
std::size_t python_frames(Span<ScriptFrame> out) noexcept;

}  // namespace cachalot::simulator
