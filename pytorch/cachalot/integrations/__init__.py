"""Other libraries than PyTorch on the process's heap, one module each; and the library that a module serves, or one line that says what is
missing.
"""

from __future__ import annotations

import importlib
import re
from types import ModuleType

from .._base.errors import EnableError


def required(module: str, package: str, oldest: str = "") -> ModuleType:
    """Returns the imported module.

    Args:
        module: "cupy".
        package: what to install: "cupy-cuda13x".
        oldest: the oldest version served, as "13.0"; "": any.

    Raises:
        EnableError: it cannot be imported, or is older; the message says what to install.
    """
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise EnableError(f"{module} cannot be imported: {error}. Install it: pip install {package}") from None
    version = str(getattr(found, "__version__", "unknown"))
    if oldest and _numbers(version) < _numbers(oldest):
        raise EnableError(f"{module} {version} is too old: cachalot serves {oldest} and newer: pip install -U {package}")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
