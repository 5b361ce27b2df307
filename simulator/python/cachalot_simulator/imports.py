"""Knows which modules of libraries a program imports while its environment is as it was: what fork_server may import for it.

Modules read variables when they are imported. One that is imported after the program has changed a variable might be another in a
process that has not.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from typing import Any


class Imports(importlib.abc.MetaPathFinder):
    """Looks at each import. It finds no module itself."""

    def __init__(self) -> None:
        self._environment = self._variables().copy()
        self._before_change: list[str] | None = None
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self._before_change is None and self._variables() != self._environment:
            self._before_change = imported_modules()

    def modules(self) -> list[str]:
        """The modules, in the order in which their import began."""
        return imported_modules() if self._before_change is None else self._before_change

    @staticmethod
    def _variables() -> dict:
        return os.environ._data  # type: ignore[attr-defined]  # a comparison of os.environ itself takes 100 times as long


def imported_modules() -> list[str]:
    """The modules of installed packages whose import is done."""
    return [name for name, module in list(sys.modules.items()) if is_installed(getattr(module, "__spec__", None))]


def is_installed(spec: Any) -> bool:
    is_done = spec is not None and not getattr(spec, "_initializing", False)
    return is_done and any(folder in (spec.origin or "") for folder in ("site-packages", "dist-packages"))
