"""Programs as a whole: the command, runs on simulated GPUs, the memory of a test, and the line at the end."""
