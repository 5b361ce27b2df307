"""Sizes as people write them: "2 GiB", "512M"."""

from __future__ import annotations

import re
from fractions import Fraction

# Steps of 1024, whatever the unit is called, as in every option of the command and the library (decision 0072).
_POWERS = {None: 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?|b|bytes?)?\s*", re.IGNORECASE)
_MOST = 1 << 62
_MOST_DIGITS = 100  # that are read, and that a message shows


def bytes_of(name: str, size: object, least: int = 0) -> int:
    """Returns the bytes of a size.

    Args:
        name: what the message of an error calls the size.
        size: bytes as an int, or a text such as "2 GiB" or "512M"; a unit counts in steps of 1024.
        least: the fewest bytes that are allowed.

    Raises:
        ValueError: `size` is invalid, or is below `least` or above 2^62 bytes.
    """
    count = _count(size)
    if count is None or not least <= count <= _MOST:
        at_least = f", at least {least >> 20} MiB" if least else ""
        at_most = ", at most 2^62 bytes" if count is not None and count > _MOST else ""
        rule = f"it must be a number of bytes or a size such as '2 GiB' or '512M'{at_least}{at_most}"
        raise ValueError(f"{name} is {_shown(size)}; {rule}")
    return count


def _count(size: object) -> int | None:
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if not found:
        return None
    if len(found[1]) > _MOST_DIGITS:
        return None if "." in found[1] else _MOST + 1
    unit = 1 << 10 * _POWERS[found[2] and found[2].lower()]
    return round(Fraction(found[1]) * unit)


def _shown(size: object) -> str:
    """Returns the given value, in a few words: Python refuses to write numbers of thousands of digits."""
    if isinstance(size, int) and size.bit_length() > 300:
        return f"a number of {size.bit_length()} bits"
    text = repr(size)
    return text if len(text) <= _MOST_DIGITS else text[:_MOST_DIGITS] + "…"
