"""The start of cachalot in a process: PyTorch's settings, its allocator, and other libraries."""
