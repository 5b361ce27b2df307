"""The figures of docs/performance.md, which bench/peers.py writes: figure -> column -> value."""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "performance.md"


def read() -> dict[str, dict[str, float]]:
    text = TABLE.read_text().split("<!-- bench/peers.py writes from here -->")[1].split("<!-- to here -->")[0]
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in text.splitlines() if line.startswith("|")]
    head = rows[0][-(len(rows[2]) - 1):]
    figures = {}
    for what, *cells in rows[2:]:
        values = {column: float(cell.replace(",", "")) for column, cell in zip(head, cells) if re.match(r"[\d.]", cell)}
        figures[what] = values
    return figures
