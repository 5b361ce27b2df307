# requires: cupy numba cuda
# simulate: --gpu l4
# unknown: value
"""PyTorch, CuPy, Numba, cuda-python and ctypes in one process use the memory of one GPU, and pass arrays to each other."""

import ctypes

import cupy
import numpy
import torch
from cuda.bindings import driver
from numba import cuda

MIB = 1 << 20


def used() -> int:
    """Bytes of the device that are not free, as each library says: all must agree."""
    free, total = torch.cuda.mem_get_info()
    runtime = ctypes.CDLL("libcudart.so.13")
    free_of_ctypes, total_of_ctypes = ctypes.c_size_t(), ctypes.c_size_t()
    assert runtime.cudaMemGetInfo(ctypes.byref(free_of_ctypes), ctypes.byref(total_of_ctypes)) == 0
    assert driver.cuMemGetInfo()[1:] == (free, total)
    assert cupy.cuda.Device().mem_info == (free, total) == (free_of_ctypes.value, total_of_ctypes.value)
    assert tuple(cuda.current_context().get_memory_info()) == (free, total)
    return total - free


@cuda.jit
def twice(x):  # noqa: ANN001, ANN201
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


def main() -> None:
    torch.zeros(1, device="cuda")
    before = used()
    of_torch = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    of_cupy = cupy.empty(32 * MIB, dtype=cupy.uint8)
    of_numba = cuda.device_array(16 * MIB, dtype=numpy.uint8)
    error, of_driver = driver.cuMemAlloc(8 * MIB)
    assert error == driver.CUresult.CUDA_SUCCESS
    assert used() - before == (64 + 32 + 16 + 8) * MIB
    error, = driver.cuMemFree(of_driver)
    del of_numba
    cuda.current_context().memory_manager.deallocations.clear()
    assert used() - before == (64 + 32) * MIB

    numbers = torch.arange(8, device="cuda")
    assert cupy.asarray(numbers).get().tolist() == list(range(8))
    assert torch.from_dlpack(cupy.array([1, 2, 3])).tolist() == [1, 2, 3]
    twice[1, 8](cuda.as_cuda_array(numbers))
    read = numbers.tolist()  # values that Numba's kernel wrote are not known here
    assert len(read) == 8
    print(f"used {used() - before} bytes, torch {of_torch.nbytes}, CuPy {of_cupy.nbytes}")


if __name__ == "__main__":
    main()
