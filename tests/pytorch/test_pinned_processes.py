"""enable(pinned=True): arguments, options, order, and how a process with pinned memory forks and ends."""

import os
import sys

import pytest
from world import run, run_python, succeeds

PINNED = "import torch\nimport cachalot\ncachalot.enable(pinned=True)\n"


def test_pinned_memory_can_be_added_later():
    code = """
    assert not cachalot.is_pinned_enabled()
    native = torch.ones(1000).pin_memory()
    cachalot.enable(pinned=True, pinned_limit="64MiB")
    cachalot.enable(pinned=True)
    assert cachalot.is_pinned_enabled() and cachalot.pinned_stats()["limit_bytes"] == 64 << 20
    ours = torch.ones(1000).pin_memory()
    assert cachalot.pinned_stats()["active.all.current"] == 1
    native.to("cuda", non_blocking=True), ours.to("cuda", non_blocking=True)
    del native, ours
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    assert cachalot.pinned_stats()["reserved_bytes.all.current"] == 0
    """
    succeeds(run_python(code, preamble="import torch\nimport cachalot\ncachalot.enable()\n"))


def test_memory_of_before_is_kept_while_a_copy_uses_it():
    """The former allocator is notified of copies of its memory: it gives a buffer back only once they are done."""
    code = f"""
    import ctypes, sys
    sys.path.append({os.path.dirname(__file__)!r})
    import world
    native = torch.ones(1 << 20).pin_memory()
    cachalot.enable(pinned=True, late=True)
    side = torch.cuda.Stream()
    world.keep_busy(side)
    with torch.cuda.stream(side):
        native.to("cuda", non_blocking=True)
    address = native.data_ptr()
    del native
    torch._C._host_emptyCache()
    runtime = ctypes.CDLL(None)
    attributes = (ctypes.c_int * 16)()

    def is_pinned():
        assert runtime.cudaPointerGetAttributes(attributes, ctypes.c_void_p(address)) == 0
        return attributes[0] == 1  # cudaMemoryTypeHost

    assert is_pinned()
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    assert not is_pinned()
    """
    succeeds(run_python(code, preamble="import torch\nimport cachalot\n"))


def test_it_says_what_it_needs():
    code = """
    def refused(kind, **arguments):
        try:
            cachalot.enable(**arguments)
        except kind as error:
            assert not cachalot.is_enabled() and not cachalot.is_pinned_enabled()
            assert "\\n" not in str(error)
            return str(error)
        raise AssertionError("accepted")

    print(refused(cachalot.EnableError, pinned=True, mode="plug"))
    print(refused(ValueError, pinned_limit="1GiB"))
    print(refused(ValueError, pinned=True, pinned_limit="a lot"))
    """
    told = succeeds(run_python(code, preamble="import torch\nimport cachalot\n")).splitlines()
    assert told[0].startswith("pinned=True needs an adapter for this PyTorch (mode 'full')")
    assert told[1] == "pinned_limit is '1GiB', but pinned is False: enable(pinned=True, pinned_limit=…)"
    assert told[2].startswith("pinned_limit is 'a lot'; it must be a number of bytes or a size")


def test_the_limit_is_an_option_too():
    code = """
    assert cachalot.pinned_stats()["limit_bytes"] == 64 << 20
    try:
        torch.empty(65 << 20, dtype=torch.uint8, pin_memory=True)
    except torch.OutOfMemoryError as error:
        assert "of a limit of 64.00 MiB" in str(error)
    else:
        raise AssertionError("served")
    """
    succeeds(run_python(code, preamble=PINNED, CACHALOT_CONF="pinned_limit_mb:64"))
    failed = run_python("", preamble=PINNED, CACHALOT_CONF="pinned_limit_mb:1")
    assert "option pinned_limit_mb: bad value '1': it must be at least 2, or 0 for no limit" in failed.stderr


def test_a_forked_child_drops_what_it_inherited():
    code = """
    import os
    kept = torch.ones(1000).pin_memory()
    kept.to("cuda", non_blocking=True)
    child = os.fork()
    if child == 0:
        try:
            torch.ones(10).pin_memory()
        except RuntimeError:
            pass
        else:
            os._exit(3)
        assert kept[0] == 1
        del kept
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cachalot.pinned_stats()["active.all.current"] == 1
    del kept
    assert torch.ones(10).pin_memory().is_pinned()
    """
    succeeds(run_python(code, preamble=PINNED))


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "os._exit(0)"])
def test_a_process_ends_with_buffers_that_are_in_use(end):
    code = f"""
    import atexit, os, sys
    kept = [torch.ones(n * 1000).pin_memory() for n in range(1, 9)]
    for each in kept:
        each.to("cuda", non_blocking=True)
    atexit.register(kept.clear)
    in_a_global = torch.ones(5).pin_memory()
    {end}
    """
    process = run_python(code, preamble=PINNED, fresh=True)
    succeeds(process)
    assert process.stderr == ""


def test_it_pins_through_the_gpu_that_is_in_use():
    """A context on another GPU would take hundreds of MiB there."""
    code = """
    torch.cuda.set_device(1)
    torch.ones(1, device="cuda")
    assert torch.ones(10).pin_memory().is_pinned()
    assert torch._C._cuda_hasPrimaryContext(1) and not torch._C._cuda_hasPrimaryContext(0)
    """
    succeeds(run_python(code, preamble=PINNED))


def test_memory_that_runs_out_is_one_catchable_error():
    code = """
    try:
        torch.empty(1 << 50, dtype=torch.uint8, pin_memory=True)
    except torch.OutOfMemoryError as error:
        assert str(error).startswith("out of pinned host memory: tried to allocate"), error
    else:
        raise AssertionError("served")
    assert torch.ones(10).pin_memory().is_pinned()
    """
    succeeds(run_python(code, preamble=PINNED))


def test_a_script_need_not_change():
    code = "import cachalot, torch; print(cachalot.is_pinned_enabled(), torch.ones(5).pin_memory().is_pinned())"
    command = [sys.executable, "-m", "cachalot", "run", "--pinned", "-c", code]
    assert succeeds(run(command, CACHALOT_STATS="0")).strip() == "True True"
