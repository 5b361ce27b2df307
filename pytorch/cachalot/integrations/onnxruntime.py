"""ONNX Runtime's GPU memory from the process's heap: options of its CUDA execution provider. Imports nothing of ONNX Runtime."""

from __future__ import annotations

import ctypes

from .._base.errors import EnableError
from .._bindings import driver
from .._bindings.plug import process_plug
from .._heap.libraries import LibraryHeap

_FUNCTIONS = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")


class _Functions(ctypes.Structure):
    """CachalotOnnxRuntimeFunctions."""

    _fields_ = [(name, ctypes.c_void_p) for name in _FUNCTIONS]


def options(device: int, config: str | None) -> dict[str, str]:
    """Implements cachalot.onnxruntime_options."""
    driver.require_device(device)
    heap = LibraryHeap("onnxruntime", config)
    plug = process_plug()
    plug.declare({"plug_onnxruntime": (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Functions))})
    functions = _Functions()
    plug.call("plug_onnxruntime", heap.account, device, ctypes.byref(functions), error_type=EnableError)
    addresses = {name: str(getattr(functions, name)) for name in _FUNCTIONS}
    return {"device_id": str(device), **addresses}
