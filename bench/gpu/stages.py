"""The stages of bench/gpu/run, in falling order of importance."""

from __future__ import annotations

import typing

LINES = "lines"  # the command prints facts and checks as lines of JSON (report.h)
STATUS = "status"  # the command's exit status is its only check
GTEST = "gtest"  # as STATUS; and at least one test must have run
CTEST = "ctest"  # as GTEST
TABLE = "table"  # as STATUS; its output goes into the report


class Command(typing.NamedTuple):
    """`words`: the first is a program of the build folder, or one of PYTHON, CTEST_PROGRAM and SANITIZER (commands.py)."""

    words: list
    kind: str = LINES
    quick: list = []  # further words where the stage is rehearsed
    simulated: dict = {}  # further variables of the simulated runtime
    needs: tuple = ()  # further requirements: "torch"
    why_not_rehearsed: str = ""


class Stage(typing.NamedTuple):
    name: str
    title: str
    seconds: int  # its time limit
    commands: list
    targets: list  # the targets of the build that it needs
    needs_packages: bool = False  # its targets need the libraries of CACHALOT_DEPS


def program(name, *parts, **options):
    return Command([f"bench/gpu/{name}", *parts], quick=["--quick"], **options)


PYTHON, CTEST_PROGRAM, SANITIZER = "python", "ctest", "compute-sanitizer"
CUDA_TESTS = "--gtest_filter=*Cuda*:*Gpu*"
CONTRACT = "--gtest_filter=*Cuda*Contract*:CudaDeviceTest*"
WHOLE_COPIES = {"CACHALOT_SIM": "devices:2,copy_bytes:1GiB,memory:80GiB"}
PEERS = [PYTHON, "bench/peers.py", "{build}", "--gpu", "--quick", "--markdown"]
NO_GPU_TO_WATCH = "the device is simulated: there is no GPU code to watch"

STAGES = [
    Stage("device", "Device: attributes, kinds of handles", 60, [program("driver")], ["gpu_driver"]),
    Stage("contract", "Contract of a device, from old and from new threads", 120, [
        Command(["tests/test_device", CONTRACT], GTEST, simulated=WHOLE_COPIES),
        Command(["tests/test_device", "--gtest_filter=*FromNewThreads*"], GTEST, simulated=WHOLE_COPIES),
    ], ["test_device"], True),
    Stage("aliasing", "Aliasing in stream order", 100, [
        program("aliasing", "kernels", "graphs", "dependent_launches", "memsets", "device_copies", "copy_engines", "early_reads"),
    ], ["gpu_aliasing"]),
    Stage("costs", "Cost of each driver call, idle and under a running kernel", 90, [program("costs")], ["gpu_costs"]),
    Stage("unmapping", "Unmapping one view while the other is used", 60, [
        program("aliasing", "unmap_one_view", "fault_under_use"),
    ], ["gpu_aliasing"]),
    Stage("load", "Page heap under load, 99 % full, with verified contents", 150, [
        program("heap", "load_with_hints", "load_without_hints"),
    ], ["gpu_heap"]),
    Stage("streams", "Dead and reused streams", 60, [program("streams", "dead", "reused")], ["gpu_streams"]),
    Stage("captures", "Captures beside other threads", 90, [program("captures")], ["gpu_captures"]),
    Stage("words", "Completion words", 90, [program("streams", "words", "record", "hints")], ["gpu_streams"]),
    Stage("end", "The end of memory", 90, [
        program("heap", "first_failure", "end_of_segments", "end_of_pages", "end_beside_another_process"),
    ], ["gpu_heap"]),
    Stage("waits", "Does cudaFree wait", 40, [program("streams", "free", "empty_cache")], ["gpu_streams"]),
    Stage("contexts", "Contexts: primary, second, green; reset", 90, [program("contexts")], ["gpu_contexts"]),
    Stage("sharing", "Sharing between processes", 150, [
        program("sharing"),
        Command([PYTHON, "bench/gpu/torch_sharing.py"], quick=["--quick"], needs=("torch",)),
    ], ["gpu_sharing", "cachalot_torch"]),
    Stage("sleep", "Sleep and wake", 90, [program("sleep")], ["gpu_sleep"]),
    Stage("pytorch", "PyTorch: equal losses, step time, memory against expandable segments", 240, [
        Command([PYTHON, "bench/gpu/training.py"], quick=["--quick"], needs=("torch",)),
    ], ["cachalot_torch"]),
    Stage("gpu_tests", "ctest -L gpu, and strict checks", 200, [
        Command([CTEST_PROGRAM, "-L", "^(gpu|strict)$"], CTEST, quick=["-R", "Kernels|CApiGpu"], simulated=WHOLE_COPIES),
    ], ["test_device", "test_kernels", "test_c_api"], True),
    Stage("compile", "PyTorch: torch.compile with CUDA graphs", 240, [
        Command([PYTHON, "bench/gpu/training.py", "--compile"], quick=["--quick"], needs=("torch",)),
    ], ["cachalot_torch"]),
    Stage("sanitizer", "compute-sanitizer on the contract", 200, [
        Command([SANITIZER, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9", "tests/test_device",
                 "--gtest_filter=*Cuda*Contract*"], GTEST, why_not_rehearsed=NO_GPU_TO_WATCH),
    ], ["test_device"], True),
    Stage("driver_table", "Driver calls as bench/device_costs prints them", 60, [
        Command(["bench/device_costs"], TABLE),
    ], ["bench_device_costs"], True),
    Stage("kernels", "Kernels and examples", 120, [
        Command(["tests/test_kernels", CUDA_TESTS], GTEST, simulated=WHOLE_COPIES),
        Command(["examples/cub_scratch"], STATUS),
        Command(["examples/async_transfer", "--mib", "1", "--steps", "5"], STATUS),
        Command(["examples/lsm_pricing", "--on", "gpu"], STATUS, simulated={"CACHALOT_SIM": "devices:2,memory:8GiB"}),
    ], ["test_kernels", "example_cub_scratch", "example_async_transfer", "example_lsm_pricing"], True),
    Stage("peers", "Other allocators on real cudaMalloc, and the page heap against expandable segments", 280, [
        Command(PEERS + ["--only", "hot_pair,churn,threads"], TABLE, quick=["--only", "hot_pair", "--peers", "cuda"]),
        Command(PEERS + ["--only", "traces", "--peers", "torch,torch_expandable,cub"], TABLE,
                quick=["--only", "churn", "--peers", ""]),
    ], ["peer_cachalot", "peer_cuda", "peer_cub", "peer_torch"], True),
    Stage("pairs", "PyTorch: time of an allocation", 150, [
        Command([PYTHON, "bench/pytorch/torch_pairs.py", "--rounds", "2"], TABLE, needs=("torch",),
                why_not_rehearsed="it takes a minute over the simulated runtime, where bench/pytorch.sh runs it"),
    ], ["cachalot_torch"]),
]


def find(name):
    return next((stage for stage in STAGES if stage.name == name), None)
