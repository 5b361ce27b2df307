"""Quantities as a reader takes them in."""

from __future__ import annotations


def bytes_text(size: int) -> str:
    """Returns "1.50 GiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def held_text(size: int, blocks: int) -> str:
    """Returns "1.50 GiB in 3 blocks"."""
    return f"{bytes_text(size)} in {blocks:,} block{'' if blocks == 1 else 's'}"
