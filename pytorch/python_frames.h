// Python's frames for call stacks (call_stack.h).
#pragma once

namespace cachalot {

// From now on call stacks have the frames of the Python code that the thread runs. Without effect where there is no Python.
// A thread that runs Python code and has let go of the GIL, as in PyTorch's functions, takes it for a moment: under no lock
// of ours, as PyTorch's memory history does. Threads that Python does not know are left alone.
void provide_python_frames() noexcept;

// From now on the frames end where code of `file` (co_filename) has begun the program: that frame, those outside of it and
// those of Python's runpy inside are left out. Throws std::bad_alloc.
void hide_python_launcher(const char* file);

}  // namespace cachalot
