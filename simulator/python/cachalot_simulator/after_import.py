"""Acts when the program has imported a module, which it may do at any time or never."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def after_import(name: str, act: Callable[[Any], None]) -> None:
    """Calls a function with the module of this name: now, if it is there, or as soon as the program has imported it."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module as it would be found anyway.

    It stays until the module was imported: a program may ask whether there is one, and import it later or not at all.
    """

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act
        self._is_asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: Any) -> None:
                load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._act(module)

            spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
