"""Reserved over live memory at the peaks of GRPO-like steps: PyTorch with switches, and the page heap with them and without.

The data, grpo.csv, is the output of bench/grpo.py --csv.
"""

from __future__ import annotations

import csv
from pathlib import Path

from svg import Picture

DATA = Path(__file__).with_suffix(".csv")
LINES = {
    "native": ("orange", "PyTorch, switched"),
    "switched": ("green", "cachalot, switched"),
    "always on": ("blue", "cachalot, always on"),
}
LEFT, RIGHT, TOP, BOTTOM = 60, 200, 64, 44
WIDTH, HEIGHT = 860, 330


def draw() -> str:
    rows = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(DATA.open())]
    ratios = {kind: [row[f"{kind} reserved"] / row[f"{kind} live"] for row in rows] for kind in LINES}
    peaks = {kind: max(row[f"{kind} reserved"] for row in rows) / max(row[f"{kind} live"] for row in rows) for kind in LINES}
    most = max(map(max, ratios.values())) + 0.05
    picture = Picture(
        WIDTH, HEIGHT, "Reserved over live GPU memory in steps of rollout, training and weight sync",
        "; ".join(f"{label}: {peaks[kind]:.3f} over all steps" for kind, (_, label) in LINES.items()) + ".")

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / (len(rows) - 1)

    def y(ratio: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (ratio - 1) / (most - 1)

    picture.text(20, 28, "Rollout, training and weight sync by CUDA IPC: reserved over live GPU memory", size=16, bold=True)
    picture.text(20, 47, "peaks of each step; lengths change from step to step; simulated device", "soft", size=12)
    for tenth in range(10, int(most * 10) + 1):
        picture.line([(LEFT, y(tenth / 10)), (WIDTH - RIGHT, y(tenth / 10))], "grid")
        picture.text(LEFT - 8, y(tenth / 10) + 4, f"{tenth / 10:.1f}", "soft", size=12, anchor="end")
    for step in (1, *range(5, len(rows) + 1, 5)):
        picture.text(x(step), HEIGHT - BOTTOM + 18, f"{step}", "soft", size=12, anchor="middle")
    picture.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "step", "soft", size=12, anchor="middle")
    labels = place([y(ratios[kind][-1]) for kind in LINES])
    for (kind, (colour, label)), at in zip(LINES.items(), labels, strict=True):
        picture.line([(x(step), y(ratio)) for step, ratio in enumerate(ratios[kind], 1)], f"line-{colour}", width=2.5)
        picture.text(WIDTH - RIGHT + 10, at - 3, label, colour, bold=True)
        picture.text(WIDTH - RIGHT + 10, at + 14, f"{peaks[kind]:.3f} over all steps", colour)
    return picture.svg()


def place(heights: list[float]) -> list[float]:
    """The heights of labels, from the last one upwards, 38 pixels apart at least."""
    placed: list[float] = []
    for height in reversed(heights):
        placed.append(min([height, *(placed[-1:] and [placed[-1] - 38])]))
    return placed[::-1]
