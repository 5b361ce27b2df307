"""A session of ONNX Runtime on cachalot's heap: cachalot.onnxruntime_options().

    python examples/onnxruntime_session.py

Ends with an error if the session did not take its memory from the heap.
"""

from __future__ import annotations

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper

import cachalot

COUNT = 1 << 20


def model() -> bytes:
    """Returns a model that computes y = x + x + x."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [COUNT]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Add", ["twice", "x"], ["y"])]
    graph = helper.make_graph(nodes, "sum", [x], [y])
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


onnxruntime.preload_dlls(cudnn=False)  # CUDA's libraries from pip's packages; cuDNN is loaded by ONNX Runtime
session = onnxruntime.InferenceSession(
    model(), providers=[("CUDAExecutionProvider", cachalot.onnxruntime_options(device=0))]
)
session.run(None, {"x": numpy.ones(COUNT, numpy.float32)})

usage = next(usage for usage in cachalot.library_usage() if usage.library == "onnxruntime")
print(f"{usage.allocations} allocations, {usage.peak_bytes:,} bytes at the peak, {usage.live_bytes:,} live")
assert session.get_providers()[0] == "CUDAExecutionProvider"
assert usage.peak_bytes >= 3 * 4 * COUNT
assert usage.live_bytes == 0
