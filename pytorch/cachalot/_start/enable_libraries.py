"""cachalot as the allocator of GPU libraries beside PyTorch: one function for each, and enable_all() for all of them, those that
are imported later included. All share one heap with each other and, after cachalot.enable(), with PyTorch, in any order.

Each function imports its library. `config` are options as for cachalot.enable(). Each raises ValueError if `config` or
CACHALOT_CONF is invalid, with key, value and rule, and EnableError if the library is missing or too old or cachalot cannot be
loaded, with what to do; nothing was changed then. A second call changes nothing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

from .._base import environment
from .._base.errors import EnableError
from .._base.log import logger
from .._bindings.plug import process_plug
from .._heap import options
from .._heap.libraries import LibraryError, LibraryHeap, raise_last_error
from .._tensors import pinned
from ..integrations import required


def enable_cupy(config: str | None = None) -> None:
    """Makes cachalot the allocator of CuPy's GPU memory, in all threads, on CuPy's current stream.

    Arrays that exist stay with CuPy's own pool until they are freed; memory that the pool has cached goes back to the device.
    `cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)` restores the pool.
    """
    from ..integrations import cupy

    cupy.enable(config)


def enable_numba(config: str | None = None) -> None:
    """Makes cachalot the memory manager of Numba's GPU memory, in all threads.

    Arrays that exist stay with Numba's own manager until they are freed. Numba's own manager comes back with the next process
    only. NUMBA_CUDA_MEMORY_MANAGER=cachalot.numba does the same without a change of the program.
    """
    from ..integrations import numba

    numba.enable(config)


def enable_cuda_core(device: Any = None, config: str | None = None) -> None:
    """Makes cachalot the memory resource of `device`, a cuda.core.Device or its number; None: of all devices.

    cuda.core has a Device in each thread: that of the calling thread changes. Buffers that exist stay with their resource.
    `device.memory_resource = cuda.core.DeviceMemoryResource(device)` restores cuda.core's own.
    """
    from ..integrations import cuda_core

    cuda_core.enable(device, config)


def enable_warp(config: str | None = None) -> None:
    """Makes cachalot the allocator of Warp's arrays on every CUDA device, in all threads, on Warp's current stream.

    Initializes Warp. Arrays that exist stay with Warp's own allocator until they are freed, as do those that are made while a
    graph is captured. `warp.set_cuda_allocator(None)` restores Warp's own.
    """
    from ..integrations import warp

    warp.enable(config)


def enable_rmm(device: int | None = None, config: str | None = None) -> None:
    """Makes cachalot RMM's memory resource of a device; None: of all devices. cuDF, cuML and the other libraries of RAPIDS
    allocate from it, on the stream that they name, in all threads.

    Buffers that exist stay with their resource. `rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())` restores RMM's
    own.
    """
    from ..integrations import rmm

    rmm.enable(device, config)


def onnxruntime_options(device: int = 0, config: str | None = None) -> dict[str, str]:
    """Returns options of ONNX Runtime's CUDA execution provider, with which a session's GPU memory is cachalot's.

        options = cachalot.onnxruntime_options()
        session = onnxruntime.InferenceSession("model.onnx", providers=[("CUDAExecutionProvider", options)])

    With these options the session works on CUDA's default stream, and ONNX Runtime refuses the option user_compute_stream. If
    memory runs out, the session raises ONNX Runtime's error, and a line on stderr has cachalot's. ONNX Runtime is not imported.
    Any number of sessions may have them.

    Raises:
        ValueError: there is no such device.
    """
    from ..integrations import onnxruntime

    return onnxruntime.options(device, config)


# CuPy's pinned host memory from cachalot's pinned heap.

_OLDEST = "13.0"


def enable_cupy_pinned(limit: pinned.Limit | None = None) -> None:
    """Makes cachalot the allocator of CuPy's pinned memory: cupy.cuda.alloc_pinned_memory, cupyx.empty_pinned and the like.

    The heap is that of enable(pinned=True), which it does not need. Buffers of before stay with CuPy's own pool until they are
    freed. CuPy itself keeps a buffer until the copies are done that CuPy made of it; other work must be waited for before the
    buffer is freed. A second call changes the limit alone.

    Args:
        limit: the most pinned memory of the process, as for enable(pinned_limit=…); None leaves the limit as it is.

    Raises:
        ValueError: `limit` is not a size, or is below 2 MiB.
        EnableError: CuPy cannot be imported, or is older than 13.
    """
    if limit is not None:
        pinned.set_pinned_limit(limit)
    cupy = required("cupy", "cupy-cuda13x", _OLDEST)
    cupy.cuda.set_pinned_memory_allocator(_Allocator(cupy))


class _Allocator:
    """The function that CuPy calls for each buffer."""

    def __init__(self, cupy: Any) -> None:
        plug = process_plug()
        self._cuda = cupy.cuda
        self._malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(plug.address("cachalot_pinned_malloc"))
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(plug.address("cachalot_pinned_free"))
        self._through: int | None = None  # the GPU that pins; only the first buffer of the process needs it

    def __call__(self, size: int) -> Any:
        if self._through is None:
            self._through = int(self._cuda.runtime.getDevice())
        ptr = self._malloc(size, self._through)
        if ptr is None and size != 0:
            raise_last_error(MemoryError)
        return self._cuda.PinnedMemoryPointer(_Buffer(ptr or 0, size, self._free), 0)


class _Buffer:
    """A buffer, as the owner that CuPy's pointers to it share. It is freed with the last of them."""

    __slots__ = ("_free", "ptr", "size")

    def __init__(self, ptr: int, size: int, free: Callable[[int], None]) -> None:
        self.ptr = ptr
        self.size = size
        self._free = free

    def __del__(self) -> None:
        self._free(self.ptr)


_NUMBA_MANAGER = "NUMBA_CUDA_MEMORY_MANAGER"


class EnabledLibraries(NamedTuple):
    """An EnabledLibraries says what enable_all did. str() has one line for each library."""

    enabled: tuple[str, ...]  # served from now on
    at_import: tuple[str, ...]  # installed, and served as soon as the program imports them
    left_out: Mapping[str, str]  # the others, each with why and what to do

    def __str__(self) -> str:
        states = {name: "enabled" for name in self.enabled}
        states |= {name: "installed; will be enabled when it is imported" for name in self.at_import}
        return "\n".join(f"{name}: {state}" for name, state in {**states, **self.left_out}.items())


class _Library(NamedTuple):
    package: str  # is there if the library is installed; looking for it imports nothing heavy
    module: str  # after whose import the library can be served
    enable: Callable[[], None]


def _enable_torch() -> None:
    from .enable import enable

    enable()


def _enable_numba() -> None:
    other = environment.text(_NUMBA_MANAGER, "default")
    if other not in ("default", "cachalot.numba"):
        raise EnableError(f"{_NUMBA_MANAGER}={other} selects another manager; remove it, or call cachalot.enable_numba()")
    enable_numba()


def _enable_warp() -> None:
    from ..integrations import warp

    warp.enable_once_initialized(None)


_LIBRARIES = {
    "torch": _Library("torch", "torch", _enable_torch),
    "cupy": _Library("cupy", "cupy", enable_cupy),
    "numba": _Library("numba_cuda", "numba.cuda", _enable_numba),
    "cuda.core": _Library("cuda.core", "cuda.core", enable_cuda_core),
    "warp": _Library("warp", "warp", _enable_warp),
    "rmm": _Library("rmm", "rmm", enable_rmm),
}


def enable_all(config: str | None = None) -> EnabledLibraries:
    """Makes cachalot the allocator of every GPU library of the process that it serves, on one heap.

    Imports none of them: a library that the program has imported is enabled now, one that it imports later right after its
    import. Of cuda.core the devices of the thread that imports it are served; Warp is served once it is initialized. A
    library that cannot be enabled keeps its own allocator: the result, or at import a warning in logging.getLogger("cachalot"),
    says why. May be called again.

    Args:
        config: options of the heap, as for cachalot.enable().

    Raises:
        ValueError: `config` or CACHALOT_CONF is invalid; the message names key, value and rule.
        EnableError: the process has other options already, or cachalot cannot be loaded.
    """
    options.give(process_plug(), config)
    enabled: list[str] = []
    at_import: list[str] = []
    left_out: dict[str, str] = {}
    installed = {name: library for name, library in _LIBRARIES.items() if _is_installed(library)}
    for name in installed.keys() - {"torch"}:
        LibraryHeap(name)  # from now on, the heap knows that streams may end
    for name, library in _LIBRARIES.items():
        if name not in installed:
            left_out[name] = "is not installed"
        elif sys.modules.get(library.module) is None:
            _at_import.add(name, library)
            at_import.append(name)
        elif (why_not := _try_to_enable(library)) is None:
            enabled.append(name)
        else:
            left_out[name] = why_not
    return EnabledLibraries(tuple(enabled), tuple(at_import), left_out)


def _is_installed(library: _Library) -> bool:
    if library.module in sys.modules:
        return sys.modules.get(library.module) is not None  # None: it must not be imported
    try:
        return importlib.util.find_spec(library.package) is not None
    except (ImportError, ValueError):  # there is no parent, or a module without a specification
        return False


def _try_to_enable(library: _Library) -> str | None:
    """Returns why the library could not be enabled; None if it is."""
    try:
        library.enable()
    except (EnableError, LibraryError, ValueError, RuntimeError) as error:
        return " ".join(str(error).split())
    return None


class _AtImport:
    """Enables libraries right after the program has imported them: a finder of sys.meta_path, which asks the others."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, _Library]] = {}

    def add(self, name: str, library: _Library) -> None:
        self._waiting[library.module] = name, library
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, module: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the specification of a module that is waited for, with a loader that also enables it; None for others."""
        if module not in self._waiting:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(module, path, target) for finder in finders if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._enable_after_load(spec.loader, module)
        return spec

    def _enable_after_load(self, loader: object, module: str) -> None:
        load: Callable[[ModuleType], None] = getattr(loader, "exec_module")

        def load_and_enable(loaded: ModuleType) -> None:
            load(loaded)
            self._enable(module)

        setattr(loader, "exec_module", load_and_enable)

    def _enable(self, module: str) -> None:
        name, library = self._waiting.pop(module, (None, None))
        if library is not None and (why_not := _try_to_enable(library)) is not None:
            logger().warning("cachalot: %s keeps its own allocator: %s", name, why_not)


_at_import = _AtImport()
