"""Sizes as people write them: "2 GiB"."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "b": 1, "bytes": 1,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def bytes_of(name: str, size: object) -> int:
    """Returns the bytes of a size: an int, or a text such as "2 GiB" or "512MB". Raises ValueError, which calls it `name`."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError(f"{name} is {size!r}; it must be a number of bytes or a size such as '2 GiB', '512 MiB' or '1.5 GB'")
    return round(float(found[1]) * _UNITS[found[2].lower()])
