"""Where the package's own files lie."""

from __future__ import annotations

from pathlib import Path

from ._plug import LIBRARY, NATIVE


def library_path() -> Path:
    """Returns libcachalot_torch.so, for torch.cuda.memory.CUDAPluggableAllocator(path, "cachalot_malloc",
    "cachalot_free").
    """
    return LIBRARY


def include_path() -> Path:
    """Returns the folder of the C++ headers, which are cachalot/….h."""
    return NATIVE / "include"
