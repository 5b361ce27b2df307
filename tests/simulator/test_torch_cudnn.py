"""Workspaces of cuDNN in an unmodified PyTorch: those that the program's cuDNN plans for the simulated GPU."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent

# Prints the workspace of each convolution: what PyTorch allocates beside the result.
CONVOLVE = """
import json, sys, time
import torch

def tensor(shape, asked):
    layout = torch.channels_last if asked["channels_last"] else torch.contiguous_format
    return torch.empty(shape, device="cuda", dtype=getattr(torch, asked["type"])).to(memory_format=layout)

def run(asked, x, w, dy):
    geometry = [[asked[name]] * 2 for name in ("stride", "padding")]
    if asked["pass"] == "forward":
        return torch.ops.aten.convolution(x, w, None, *geometry, [1, 1], False, [0, 0], 1)
    wanted = [asked["pass"] == "data", asked["pass"] == "filter", False]
    given = torch.ops.aten.convolution_backward(dy, x, w, None, *geometry, [1, 1], False, [0, 0], 1, wanted)
    return given[0] if wanted[0] else given[1]

def workspace(asked):
    x, w = tensor(asked["input"], asked), tensor(asked["weight"], asked)
    dy = torch.empty_like(torch.ops.aten.convolution(x, w, None, [asked["stride"]] * 2, [asked["padding"]] * 2, [1, 1],
                                                     False, [0, 0], 1))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = run(asked, x, w, dy)
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before - result.nbytes

torch.backends.cudnn.benchmark = "benchmark" in sys.argv
begin = time.process_time()
answer = {"workspaces": [workspace(asked) for asked in json.load(sys.stdin)]}
print(json.dumps(answer | {"cpu_seconds": time.process_time() - begin}))
"""


def convolution(which="forward", batch=32, channels=64, window=3, kind="float", channels_last=False):
    return {
        "pass": which,
        "input": [batch, channels, 28, 28],
        "weight": [128, channels, window, window],
        "stride": 1,
        "padding": window // 2,
        "type": kind,
        "channels_last": channels_last,
    }


def run(command, environment, asked):
    done = subprocess.run(command, env=environment, input=json.dumps(asked), capture_output=True, text=True, check=True)
    assert done.stderr == "", "the simulator has nothing to say"
    return json.loads(done.stdout)


def with_setting(key, value):
    return os.environ | {"CACHALOT_SIM": f'{os.environ["CACHALOT_SIM"]},{key}:"{value}"'}


def convolve(gpu, asked, *options):
    return run([sys.executable, "-c", CONVOLVE, *options], with_setting("gpu", gpu), asked)


def workspaces(gpu, asked, *options):
    return convolve(gpu, asked, *options)["workspaces"]


def library():
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "libcudnn.so.9" in line}
    (path,) = loaded
    return Path(path).with_name("libcudnn_graph.so.9")


def workspaces_by_cudnn(gpu, asked):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("CACHALOT_", "LD_"))}
    command = [sys.executable, str(HERE / "ask_cudnn.py"), str(library()), gpu]
    return run(command, plain, asked)


# Windows of 3 x 3 and more, which cuDNN does not make with cublasLt on these GPUs: that does nothing without a GPU.
ASKED = [
    convolution(which, batch, channels, window, kind, channels_last)
    for which, (batch, channels, window), kind, channels_last in itertools.product(
        ("forward", "data", "filter"), [(32, 64, 3), (64, 64, 3), (16, 48, 5)], ("float", "half"), (False, True)
    )
]


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_workspaces_are_those_of_cudnn_for_this_gpu(gpu):
    assert workspaces(gpu, ASKED) == workspaces_by_cudnn(gpu, ASKED)


def test_workspaces_differ_by_gpu_shape_type_and_layout():
    a100, t4, h100 = (workspaces(gpu, ASKED) for gpu in ("a100", "t4", "h100"))
    assert a100 != t4 and a100 != h100 and t4 != h100
    by_case = {json.dumps(asked): bytes_ for asked, bytes_ in zip(ASKED, a100)}

    def of(**changes):
        return by_case[json.dumps(convolution(**changes))]

    assert of(batch=64) > of(batch=32) > 0
    assert of() != of(kind="half")
    assert of(kind="half") > of(kind="half", channels_last=True) == 0, "tensor cores read channels last, without a copy"
    assert of(which="data") != of(which="filter")


def test_a_window_of_one_pixel_is_a_product_of_matrices():
    pixels = [convolution(which, window=1) for which in ("forward", "data")]
    assert workspaces("a100", pixels) == [0, 0], "cublasLt makes it, without a copy"


def test_finding_a_plan_tries_all_of_them_and_takes_the_first():
    asked = [convolution(), convolution()]
    tried, found = workspaces("a100", asked, "benchmark")
    (planned,) = workspaces("a100", [convolution()])
    # The plan was found in the preparation of the first, in its forward pass.
    assert tried == found == planned
    (searched, known) = workspaces("a100", [convolution("filter"), convolution("filter")], "benchmark")
    (planned,) = workspaces("a100", [convolution("filter")])
    assert known == planned < searched, "the search has the workspace of the plan that needs most"


def test_finding_a_plan_compiles_nothing():
    asked = [convolution(which, batch) for which in ("forward", "filter") for batch in range(20, 40)]
    # Compiling the kernels of one engine takes 0.2 s, and for each of the 40 searches there is one.
    assert convolve("a100", asked, "benchmark")["cpu_seconds"] < 4


def test_the_version_is_that_of_the_programs_cudnn():
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("CACHALOT_", "LD_"))}
    program = f"import ctypes; print(ctypes.CDLL({str(library())!r}).cudnnGetVersion())"
    version = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True, check=True)
    assert torch.backends.cudnn.version() == int(version.stdout)


# A program without PyTorch: the process has loaded no cuDNN when it calls cuDNN's functions.
WITHOUT_CUDNN = """
import ctypes
simulator = ctypes.CDLL(None)
descriptor = ctypes.c_void_p()
assert simulator.cudnnBackendCreateDescriptor(5, ctypes.byref(descriptor)) == 0
bytes_, count = ctypes.c_int64(-1), ctypes.c_int64()
one = ctypes.c_int64(1)
assert simulator.cudnnBackendGetAttribute(descriptor, 402, 3, one, ctypes.byref(count), ctypes.byref(bytes_)) == 0
assert simulator.cudnnBackendExecute(None, descriptor, None) == 0
assert simulator.cudaFree(None) == 0
print(bytes_.value)
"""


def test_without_cudnn_workspaces_are_missing_and_the_report_says_so(tmp_path):
    report = tmp_path / "report.json"
    environment = with_setting("report", report)
    command = [sys.executable, "-c", WITHOUT_CUDNN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert done.stderr == "cachalot simulator: the program's cuDNN is not libcudnn.so.9: its workspaces are missing\n"
    use = json.loads(report.read_text())["cudnn"]
    assert use["executions"] == 1 and not use["planned"]


def test_a_bad_argument_is_an_error_of_cudnn():
    simulator = ctypes.CDLL(None)
    assert simulator.cudnnBackendCreateDescriptor(5, None) == 2000
    descriptor = ctypes.c_void_p()
    assert simulator.cudnnBackendCreateDescriptor(5, ctypes.byref(descriptor)) == 0
    assert simulator.cudnnBackendFinalize(descriptor) != 0, "a plan without a configuration"
    assert simulator.cudnnBackendExecute(None, descriptor, None) != 0
    assert simulator.cudnnBackendDestroyDescriptor(descriptor) == 0
