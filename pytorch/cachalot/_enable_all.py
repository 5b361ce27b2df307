"""cachalot.enable_all(): every GPU library of the process on one heap, those that are imported later included."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple

from . import _options
from ._errors import EnableError
from ._libraries import LibraryError, LibraryHeap
from ._log import logger
from ._plug import process_plug

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
    enable: Callable[[str | None], None]


def _enable_torch(config: str | None) -> None:
    from ._enable import enable

    enable(config)


def _enable_cupy(config: str | None) -> None:
    from .integrations import cupy

    cupy.enable(config)


def _enable_numba(config: str | None) -> None:
    other = os.environ.get(_NUMBA_MANAGER, "default")
    if other not in ("default", "cachalot.numba"):
        raise EnableError(f"{_NUMBA_MANAGER}={other} selects another manager; remove it, or call cachalot.enable_numba()")
    from .integrations import numba

    numba.enable(config)


def _enable_cuda_core(config: str | None) -> None:
    from .integrations import cuda_core

    cuda_core.enable(None, config)


def _enable_warp(config: str | None) -> None:
    from .integrations import warp

    warp.enable_once_initialized(config)


def _enable_rmm(config: str | None) -> None:
    from .integrations import rmm

    rmm.enable(None, config)


_LIBRARIES = {
    "torch": _Library("torch", "torch", _enable_torch),
    "cupy": _Library("cupy", "cupy", _enable_cupy),
    "numba": _Library("numba_cuda", "numba.cuda", _enable_numba),
    "cuda.core": _Library("cuda.core", "cuda.core", _enable_cuda_core),
    "warp": _Library("warp", "warp", _enable_warp),
    "rmm": _Library("rmm", "rmm", _enable_rmm),
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
    _options.give(process_plug(), config)
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
        library.enable(None)
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
