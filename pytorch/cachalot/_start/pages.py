"""The page heap for a program that was not told of it: an engine's sleep mode begins with it."""

from __future__ import annotations

from .._heap.enabled import is_enabled
from .enable import enable


def enable_pages() -> None:
    """Enables cachalot with the page heap, unless cachalot is enabled already: then its heap is what the program chose.

    Raises:
        EnableError, ValueError: as cachalot.enable().
    """
    if not is_enabled():
        enable("heap:pages", late=True, mode="auto-plug")
