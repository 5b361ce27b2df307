"""Begins to watch when the program imports torch."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any


class TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as it would be found anyway, and begins to watch when it has been imported.

    It stays until then: a program may ask whether there is a torch, and import it later or not at all.
    """

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_watch(module: Any) -> None:
                load(module)
                sys.meta_path.remove(self)
                from cachalot_simulator import absent_ranks, object_collectives  # nothing in programs without torch
                from cachalot_simulator.observer import watch

                watch(module)
                object_collectives.install(module)
                absent_ranks.install(module)

            spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec
