"""The search for leaks: stack frames, the lines that hold memory, and the objects that keep it."""
