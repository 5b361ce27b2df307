"""Reserved memory over the events of gpt2_varlen, with PyTorch's policy and with the page heap.

The data, memory_over_time.csv, is the output of build/release/bench/memory_over_time.
"""

from __future__ import annotations

import csv
from pathlib import Path

from svg import Picture

DATA = Path(__file__).with_suffix(".csv")
GIB = 2**30
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 64, 44
WIDTH, HEIGHT = 860, 360
MOST_GIB = 13


def draw() -> str:
    rows = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(DATA.open())]
    last = rows[-1]["event"]
    peaks = {name: max(row[name] for row in rows) for name in rows[0] if name != "event"}
    picture = Picture(
        WIDTH, HEIGHT, "Reserved GPU memory over a training",
        f"PyTorch's policy reserves up to {peaks['heap:segments'] / GIB:.2f} GiB, the page heap up to "
        f"{peaks['heap:pages'] / GIB:.2f} GiB; live tensors need up to {peaks['requested'] / GIB:.2f} GiB.")

    def x(event: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * event / last

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / (MOST_GIB * GIB)

    picture.text(20, 28, "GPT-2 training with varied sequence lengths: reserved GPU memory", size=16, bold=True)
    picture.text(20, 47, "trace gpt2_varlen, 26,444 allocations and frees, simulated device", "soft", size=12)
    for gib in range(0, MOST_GIB, 2):
        picture.line([(LEFT, y(gib * GIB)), (WIDTH - RIGHT, y(gib * GIB))], "grid")
        picture.text(LEFT - 8, y(gib * GIB) + 4, f"{gib} GiB", "soft", size=12, anchor="end")
    for event in range(0, last + 1, 5000):
        picture.text(x(event), HEIGHT - BOTTOM + 18, f"{event:,}", "soft", size=12, anchor="middle")
    picture.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "event", "soft", size=12, anchor="middle")

    requested = [(x(row["event"]), y(row["requested"])) for row in rows]
    picture.area([(LEFT, y(0)), *requested, (requested[-1][0], y(0))], "grey", opacity=0.6)
    for name, colour in (("heap:segments", "orange"), ("heap:pages", "blue")):
        picture.line(steps([(x(row["event"]), y(row[name])) for row in rows]), f"line-{colour}", width=2.5)

    def label(name: str, at: float, colour: str, first: str) -> None:
        picture.text(WIDTH - RIGHT + 10, at - 3, first, colour, bold=True)
        picture.text(WIDTH - RIGHT + 10, at + 14, f"{peaks[name] / GIB:.2f} GiB at most", colour)

    label("heap:segments", y(rows[-1]["heap:segments"]), "orange", "PyTorch's policy")
    label("heap:pages", y(rows[-1]["heap:pages"]), "blue", "cachalot's page heap")
    label("requested", y(3 * GIB), "soft", "live tensors")
    return picture.svg()


def steps(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points at which the height changes, as a staircase."""
    kept = [points[0]]
    for point in points[1:]:
        if point[1] != kept[-1][1]:
            kept += [(point[0], kept[-1][1]), point]
    return [*kept, (points[-1][0], kept[-1][1])]
