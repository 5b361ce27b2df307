"""Watches PyTorch in the programs that `cachalot simulate` runs: Python imports a module of this name when it starts.

cachalot_simulator, beside this file, does the rest. simulator/README.md describes its files.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def import_the_users_own() -> None:
    """Another sitecustomize, which this one would hide."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    import_the_users_own()
finally:  # Python tells an error of it, and goes on
    if os.environ.get("CACHALOT_SIM"):
        from cachalot_simulator import is_observed, watch_program

        if is_observed():
            watch_program()
