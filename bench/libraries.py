#!/usr/bin/env python3
"""The host time of an allocation and its free, in each library by its own allocator and by cachalot, and that of enable_all().

    bench/libraries.py [bytes]

Runs over whatever CUDA runtime the process finds; over the simulated one, driver calls take almost no time, which flatters the
libraries that make one at each allocation. The two allocators of a library alternate, and the least of all rounds counts.
Libraries that are not installed are left out, as is an allocator that does not work on this runtime: both with a line.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

PAIRS, ROUNDS = 1000, 60
BYTES = int(sys.argv[1]) if len(sys.argv) > 1 else 4096

Pair = Callable[[], object]  # one allocation and its free


def main() -> None:
    print(f"an allocation of {BYTES} bytes and its free, in microseconds of host time")
    print(f"{'library':<12}{'its own':>10}{'cachalot':>10}{'ratio':>8}")
    for name, pairs in LIBRARIES.items():
        try:
            own, ours = alternating(*pairs())
            print(f"{name:<12}{own:>10.2f}{ours:>10.2f}{ours / own:>8.2f}")
        except (ImportError, RuntimeError) as error:
            print(f"{name:<12} not measured: {' '.join(str(error).split())}")
    print(f"enable_all() of its own: {enable_all_ms():.0f} ms, the least of 5 processes")


def alternating(own: Pair, ours: Pair) -> tuple[float, float]:
    """Returns the least microseconds of a pair, of each."""
    times: dict[Pair, list[float]] = {own: [], ours: []}
    for _ in range(ROUNDS):
        for pair, seen in times.items():
            begin = time.perf_counter()
            for _ in range(PAIRS):
                pair()
            seen.append((time.perf_counter() - begin) / PAIRS * 1e6)
    return min(times[own]), min(times[ours])


def cupy_pairs() -> tuple[Pair, Pair]:
    import cupy

    import cachalot

    own = cupy.get_default_memory_pool().malloc
    cachalot.enable_cupy()
    ours = cupy.cuda.get_allocator()
    return (lambda: own(BYTES)), (lambda: ours(BYTES))


def numba_pairs() -> tuple[Pair, Pair]:
    from numba import cuda
    from numba.cuda.cudadrv.driver import NumbaCUDAMemoryManager

    import cachalot

    context = cuda.current_context()
    own = NumbaCUDAMemoryManager(context=context)
    own.initialize()
    cachalot.enable_numba()
    ours = context.memory_manager
    return (lambda: own.memalloc(BYTES)), (lambda: ours.memalloc(BYTES))


def cuda_core_pairs() -> tuple[Pair, Pair]:
    from cuda.core import Device, DeviceMemoryResource

    import cachalot

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    own = DeviceMemoryResource(device)
    cachalot.enable_cuda_core(device)
    ours = device.memory_resource
    return (lambda: own.allocate(BYTES, stream=stream).close()), (lambda: ours.allocate(BYTES, stream=stream).close())


def warp_pairs() -> tuple[Pair, Pair]:
    import warp

    import cachalot

    warp.config.quiet = True
    warp.init()
    device = warp.get_device("cuda:0")
    own = warp.get_device_allocator(device)
    own.deallocate(own.allocate(BYTES), BYTES)
    cachalot.enable_warp()
    ours = warp.get_device_allocator(device)
    return (lambda: own.deallocate(own.allocate(BYTES), BYTES)), (lambda: ours.deallocate(ours.allocate(BYTES), BYTES))


def rmm_pairs() -> tuple[Pair, Pair]:
    """RMM's own is its pool, over cachalot: over the simulated runtime RMM cannot call CUDA itself, and does not tell its device."""
    import rmm
    import rmm.pylibrmm.memory_resource._memory_resource as resources

    import cachalot

    resources.getDevice = lambda: 0
    cachalot.enable_rmm(0)
    ours = rmm.mr.get_per_device_resource(0)
    own = rmm.mr.PoolMemoryResource(ours, 1 << 26)
    stream = rmm.pylibrmm.stream.DEFAULT_STREAM

    def pair(resource: rmm.mr.DeviceMemoryResource) -> Pair:
        return lambda: rmm.DeviceBuffer(size=BYTES, stream=stream, mr=resource)

    return pair(own), pair(ours)


def onnxruntime_pairs() -> tuple[Pair, Pair]:
    """A run of a model with three tensors: without a run the provider does not give its memory. RuntimeError without cuDNN."""
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    import cachalot

    count = BYTES // 4
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [count]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Add", ["twice", "x"], ["y"])]
    graph = helper.make_graph(nodes, "sum", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    onnxruntime.preload_dlls(cudnn=False)
    values = {"x": numpy.ones(count, numpy.float32)}

    def pair(options: dict[str, str]) -> Pair:
        session = onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", options)])
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise RuntimeError("the CUDA execution provider does not load; LD_LIBRARY_PATH may lack libcudnn.so.9")
        return lambda: session.run(None, values)

    return pair({"device_id": "0"}), pair(cachalot.onnxruntime_options())


def enable_all_ms() -> float:
    """Returns the milliseconds of `import cachalot` and enable_all() in a new process, with nothing else imported."""
    program = "import time; t = time.perf_counter(); import cachalot; cachalot.enable_all(); print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True) for _ in range(5)]
    return 1e3 * min(float(run.stdout) for run in runs)


LIBRARIES: dict[str, Callable[[], tuple[Pair, Pair]]] = {
    "cupy": cupy_pairs,
    "numba": numba_pairs,
    "cuda.core": cuda_core_pairs,
    "warp": warp_pairs,
    "rmm": rmm_pairs,
    "onnxruntime": onnxruntime_pairs,
}

if __name__ == "__main__":
    main()
