"""Sizes as people write them: "2 GiB", "512M"."""

from __future__ import annotations

import re
from fractions import Fraction

# Steps of 1024, whatever the unit is called, as in every option of the command and the library (decision 0072).
_POWERS = {None: 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?|b|bytes?)?\s*", re.IGNORECASE)
_MOST = 1 << 62
_MOST_DIGITS = 100  # a number with more is no size


def bytes_of(name: str, size: object, least: int = 0) -> int:
    """Returns the bytes of a size.

    Args:
        name: what the message of an error calls the size.
        size: bytes as an int, or a text such as "2 GiB" or "512M"; a unit counts in steps of 1024.
        least: the fewest bytes that are allowed.

    Raises:
        ValueError: `size` is no size, or is below `least` or above 2^62 bytes.
    """
    count = _count(size)
    if count is None or not least <= count <= _MOST:
        at_least = f", at least {least >> 20} MiB" if least else ""
        raise ValueError(f"{name} is {size!r}; it must be a number of bytes or a size such as '2 GiB' or '512M'{at_least}")
    return count


def _count(size: object) -> int | None:
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if not found or len(found[1]) > _MOST_DIGITS:
        return None
    return round(Fraction(found[1]) * (1 << 10 * _POWERS[found[2] and found[2].lower()]))
