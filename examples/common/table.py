"""Tables for the terminal, and the relations that hold in them."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def lines(*rows: Sequence[str]) -> list[str]:
    """Columns as wide as they must be; the first one is aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(_aligned(row, widths)).rstrip() for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = row
    return [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:]))]


def print_columns(head: str, columns: dict[str, dict[str, int]]) -> None:
    """Byte counts: a column each for the measurement under its name, in rows of the same names."""
    names = next(iter(columns.values()))
    rows = [[name, *(f"{column[name]:,}" for column in columns.values())] for name in names]
    print(*lines([head, *columns], *rows), sep="\n")


class Relations:
    """Relations must hold between the figures; they are counted, and reported if they do not."""

    def __init__(self) -> None:
        self._checked = 0
        self._broken: list[str] = []

    def equal(self, what: str, left: float, right: float, tolerance: float = 0.0) -> None:
        """`left` is `right`, up to a share `tolerance` of it."""
        near = f" (up to {tolerance:.0%})" if tolerance else ""
        self.holds(f"{what}: {left:,} = {right:,}{near}", abs(left - right) <= tolerance * abs(right))

    def less(self, what: str, left: float, right: float) -> None:
        self.holds(f"{what}: {left:,} < {right:,}", left < right)

    def at_most(self, what: str, left: float, right: float) -> None:
        self.holds(f"{what}: {left:,} <= {right:,}", left <= right)

    def holds(self, what: str, true: bool) -> None:
        self._checked += 1
        if not true:
            self._broken.append(what)

    def finish(self) -> None:
        """Says how many held; ends the process with those that did not."""
        if self._broken:
            sys.exit("\n".join(f"does not hold: {what}" for what in self._broken))
        print(f"{self._checked} relations hold")
