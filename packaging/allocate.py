"""Asks for a GiB of the GPU that is there, or simulated, through nothing but CUDA's runtime."""

import ctypes

cuda = ctypes.CDLL(None)  # the simulated runtime is preloaded
pointer = ctypes.c_void_p()
assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
assert pointer.value
assert cuda.cudaFree(pointer) == 0
