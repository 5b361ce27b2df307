"""The world that the tests run in: the mode, the device, and other processes in the same mode."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import fork_server
import pytest
import torch

MODES = ("native", "plug", "full", "pages")
MODE = os.environ.get("CACHALOT_TEST_MODE", "")
if MODE not in MODES:
    pytest.exit(f"CACHALOT_TEST_MODE is '{MODE}'; it must be one of {', '.join(MODES)}", returncode=2)

VERSION = torch.torch_version.TorchVersion(torch.__version__)  # compares with "2.13"

PAGES = MODE == "pages"
if PAGES:
    os.environ["CACHALOT_CONF"] = "heap:pages"
ENABLE_MODE = "full" if PAGES else MODE  # of cachalot.enable

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30

not_native = pytest.mark.skipif(MODE == "native", reason="is about cachalot")
full_only = pytest.mark.skipif(MODE not in ("full", "pages"), reason="is about the full allocator")
not_plug = pytest.mark.skipif(MODE == "plug", reason="needs the full allocator (test_functions.py)")
not_pages = pytest.mark.skipif(PAGES, reason="the heap makes no difference: mode full runs it")



def since(version):
    """Marks a test of what PyTorch has since a version."""
    return pytest.mark.skipif(VERSION < version, reason=f"came with PyTorch {version}")


# The history's actions for memory that is taken and given back.
MEMORY_COMES, MEMORY_GOES = ("segment_map", "segment_unmap") if PAGES else ("segment_alloc", "segment_free")

# The lines with which a program of this mode begins.
PREAMBLE = "import torch\n" + ("" if MODE == "native" else f"import cachalot\ncachalot.enable(mode={ENABLE_MODE!r})\n")


def enable():
    if MODE != "native":
        import cachalot

        cachalot.enable(mode=ENABLE_MODE)


def change_settings(text):
    """Has PyTorch parse settings."""
    torch._C._accelerator_setAllocatorSettings(text)


def reset():
    """An empty allocator with default settings and with statistics that begin now."""
    gc.collect()
    torch.cuda.synchronize()
    deadline = time.monotonic() + 2  # autograd's threads release the memory of a failed backward() a moment after it has raised
    while torch.cuda.memory_allocated() and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    torch.cuda.memory._record_memory_history(None)
    change_settings(f"expandable_segments:{PAGES}")  # the one that a parse does not reset
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_allocated() == 0, "an earlier test left tensors behind"


def bytes_on_gpu(count, device="cuda"):
    """A tensor of `count` bytes, not written to."""
    return torch.empty(count, dtype=torch.uint8, device=device)


def held_for(size):
    """Returns the bytes reserved when the only blocks, side by side, have `size` bytes in all: a segment, or pages."""
    if not PAGES and size < 10 * MiB:
        return 2 * MiB if size <= MiB else 20 * MiB
    return -(-size // (2 * MiB)) * 2 * MiB


def total_memory():
    return torch.cuda.mem_get_info()[1]


def keep_busy(stream, seconds=1.0):
    """Queues work on the stream that lasts: simulated time passes only when the host waits for it."""
    simulated = getattr(ctypes.CDLL(None), "cachalot_sim_launch", None)
    if simulated is None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(seconds * torch.cuda.get_device_properties(stream.device).clock_rate * 1000))
        return
    simulated.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    assert simulated(stream.cuda_stream, int(seconds * 1e9)) == 0


def segments(pool=None):
    """Returns the snapshot's segments: all, or a private pool's."""
    return [s for s in torch.cuda.memory_snapshot() if pool is None or s["segment_pool_id"] == tuple(pool)]


def restore_pool(state, alive, kept=()):
    """Restores a checkpoint of a private pool on device 0, as torch.compile's graph trees do.

    `alive` are the tensors that live in the pool: they lose their memory. Returns storages that own their memory again, for those
    in `kept`.
    """
    owners = [
        torch._C._construct_storage_from_data_pointer(t.data_ptr(), t.device, t.untyped_storage().nbytes())
        for t in kept
    ]
    stale = [tensor.untyped_storage()._cdata for tensor in alive]
    torch._C._cuda_setCheckpointPoolState(0, state, stale, [owner._cdata for owner in owners])
    return owners


_fork_server = fork_server.ForkServer()


# Writes as a kernel of the user's might: past what PyTorch knows. Each byte becomes another one.
HANDS = """
import ctypes
_cuda = ctypes.CDLL(None)

def smash(address, count=1):
    held = (ctypes.c_ubyte * count)()
    assert _cuda.cudaMemcpy(held, ctypes.c_void_p(address), ctypes.c_size_t(count), 2) == 0
    for i in range(count):
        held[i] ^= 0x55
    assert _cuda.cudaMemcpy(ctypes.c_void_p(address), held, ctypes.c_size_t(count), 1) == 0
"""


def run_python(code, *, preamble=PREAMBLE, arguments=(), fresh=False, **options):
    """Runs `code` in a process of its own, in this mode; returns it with its output.

    What begins with the import of torch is run by run_quickly, with its options, unless it must be a `fresh` process.
    """
    code = preamble + textwrap.dedent(code)
    how = run if fresh or not code.startswith("import torch") else run_quickly
    return how([sys.executable, "-c", code, *arguments], **options)


def run_quickly(command, *, timeout=120, search_at_end=False, **environment):
    """Runs a Python program as `run` does, in a process that was forked from one that has imported torch; where the variables are
    read earlier than that, in a fresh one.
    """
    if any(map(_is_read_early, environment.items())):
        return run(command, timeout=timeout, **environment)
    environment = {name: str(value) for name, value in environment.items()}
    return _fork_server.run([str(word) for word in command[1:]], os.environ | environment, timeout, search_at_end)


def start_quickly(code, *, stdin, stdout, **environment):
    """Starts code as run_python does, beside the test, with these files as its standard streams; the preamble must not need a
    fresh process. Returns the process; its wait(timeout) returns it with its errors.
    """
    environment = {name: str(value) for name, value in environment.items()}
    assert not any(map(_is_read_early, environment.items()))
    return _fork_server.start(["-c", code], os.environ | environment, stdin, stdout)


def run_by_command(command, arguments, *, folder, timeout=120, **environment):
    """Runs a command that runs `python arguments…`, as run_quickly does, and adds to these words how it does."""
    descriptor = _fork_server.descriptor()
    forked = Path(__file__).with_name("forked_python.py")
    return subprocess.run(
        [*command, sys.executable, "-S", "-E", forked, *arguments], env=environment | {"FORK_SERVER": str(descriptor)},
        pass_fds=[descriptor], cwd=folder, capture_output=True, text=True, timeout=timeout)


def _is_read_early(variable):
    name, value = variable
    return name != "PYTHONPATH" and name.startswith(("LD_", "PYTHON", "OMP_")) or "backend" in str(value)


def simulated(**settings):
    """The variable of the simulated GPU's settings: these on top of those of the tests. For `run` and its like: **simulated(…)."""
    own = dict(setting.split(":", 1) for setting in os.environ.get("CACHALOT_SIM", "").split(",") if setting)
    own |= {key: f'"{value}"' for key, value in settings.items()}
    return {"CACHALOT_SIM": ",".join(f"{key}:{value}" for key, value in own.items())}


def run(command, *, timeout=120, **environment):
    environment = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [str(word) for word in command], env=os.environ | environment, capture_output=True, text=True, timeout=timeout
    )


def succeeds(process):
    assert process.returncode == 0, f"exit status {process.returncode}\n{process.stdout}\n{process.stderr}"
    return process.stdout


def compile_beside_the_plug(source, library):
    """Compiles C++ against torch, linked with the plug-in, which it loads. Returns the library's path."""
    from cachalot._bindings import adapter, plug

    plug.Plug()
    adapter._compile(source, library)
    return library


def needs_enable(*calls):
    """Each of the calls, texts, is refused in a process where cachalot is not enabled, with what to do."""
    code = f"""
        import torch
        import cachalot
        for call in ({", ".join(f"lambda: {call}" for call in calls)},):
            try:
                call()
            except cachalot.EnableError as error:
                assert "call cachalot.enable() first" in str(error)
            else:
                raise AssertionError("not refused")
    """
    succeeds(run_python(code, preamble=""))
