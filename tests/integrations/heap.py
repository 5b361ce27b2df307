"""The common questions of all integrations' tests: the usage of a library, the text of an out-of-memory error, and a new
process."""

import contextlib
import ctypes
import os
import subprocess
import sys
import textwrap
import threading

import cachalot

MiB = 1 << 20

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate"


def usage(library, device=0):
    """The library's row for the device; zeros where it has none."""
    rows = [row for row in cachalot.library_usage() if (row.library, row.device) == (library, device)]
    return rows[0] if rows else cachalot.LibraryUsage(library, device, 0, 0, 0, 0)


def live_bytes(library, device=0):
    return usage(library, device).live_bytes


def run(program, **environment):
    """The standard output of a new process that must end well, with nothing on standard error but what Warp says of itself."""
    ended = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(program)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ours = [line for line in ended.stderr.splitlines() if not line.startswith(("Warp CUDA error", "cachalot simulator: "))]
    assert ours == [], ended.stderr
    return ended.stdout


@contextlib.contextmanager
def held(stream):
    """A stream of CUDA's, by its handle, that is at work until the end of the block."""
    gate = threading.Event()
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(30) and None)
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuLaunchHostFunc.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    assert driver.cuLaunchHostFunc(stream, ctypes.cast(work, ctypes.c_void_p), None) == 0
    try:
        yield
    finally:
        gate.set()
        assert driver.cuCtxSynchronize() == 0  # `work` must be there until it has returned
