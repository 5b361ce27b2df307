"""An allocator of segments that counts its calls, in C, for MemPool(allocator)."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

_SOURCE = r"""
#include <stddef.h>

extern int cudaMalloc(void** ptr, size_t bytes);
extern int cudaFree(void* ptr);
extern int cudaGetLastError(void);

static long allocations, frees;
static size_t capacity = (size_t)-1;

void* provider_allocate(size_t bytes, int device, void* stream) {
  void* ptr = NULL;
  if (bytes > capacity || cudaMalloc(&ptr, bytes) != 0) {
    cudaGetLastError();
    return NULL;
  }
  ++allocations;
  return ptr;
}
void provider_free(void* ptr, size_t bytes, int device, void* stream) {
  ++frees;
  cudaFree(ptr);
}
long provider_allocations(void) { return allocations; }
long provider_frees(void) { return frees; }
void provider_set_capacity(size_t bytes) { capacity = bytes; }
"""


@functools.cache
def library():
    """The compiled file, with provider_allocate and provider_free."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to make a segment provider with")
    folder = Path(tempfile.mkdtemp())
    (folder / "provider.c").write_text(_SOURCE)
    target = folder / "libprovider.so"
    runtime = Path(torch.__file__).parent.parent / "nvidia" / f"cu{torch.version.cuda.partition('.')[0]}" / "lib"
    libraries = [str(path) for path in runtime.glob("libcudart.so.*")]
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", target, folder / "provider.c", *libraries],
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    return target


class Provider:
    """`allocator` is a torch._C._cuda_CUDAAllocator. Counts from 0 in each `with`."""

    def __enter__(self):
        self._library = ctypes.CDLL(str(library()))
        self._start = self._counts()
        plugged = torch.cuda.memory.CUDAPluggableAllocator(str(library()), "provider_allocate", "provider_free")
        self.allocator = plugged.allocator()
        self.set_capacity(2**64 - 1)
        return self

    def __exit__(self, *_):
        self.set_capacity(2**64 - 1)

    def calls(self):
        """(segments given, segments taken back)"""
        return tuple(now - start for now, start in zip(self._counts(), self._start, strict=True))

    def set_capacity(self, size):
        """The largest segment it gives."""
        self._library.provider_set_capacity(ctypes.c_size_t(size))

    def forget_allocator(self):
        self.allocator = None

    def _counts(self):
        return self._library.provider_allocations(), self._library.provider_frees()
