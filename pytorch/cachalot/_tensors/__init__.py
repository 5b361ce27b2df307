"""Tensors beside the caching heap: pools, pinned memory, saved activations, and files on their way to the GPU."""
