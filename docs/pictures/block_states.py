"""The states of a Block and what changes them: the flags are read from allocator/blocks/block.h."""

from __future__ import annotations

import re
from pathlib import Path

from svg import Picture

HEADER = Path(__file__).resolve().parents[2] / "allocator/blocks/block.h"
WIDTH, HEIGHT = 860, 545

# name: (x and y of the centre, what it means, flag in block.h, colour)
STATES = {
    "free": (150, 210, "in its arena's bins", None, "tint-green"),
    "allocated": (500, 210, "the program has it", "kAllocated", "tint-orange"),
    "claimed": (150, 400, "being backed by pages", "kClaimed", "tint-grey"),
    "freeing": (720, 320, "events are being recorded", "kFreeing", "tint-grey"),
    "pending": (500, 440, "waits for other streams", "kPending", "tint-grey"),
    "cached": (150, 100, "in a thread cache", "kCached", "tint-blue"),
    "lent": (500, 100, "the program has it", "kCached, lent_bytes", "tint-orange"),
}
BOX_WIDTH, BOX_HEIGHT = 176, 56


def require_flags() -> None:
    flags = set(re.findall(r"^\s+(k\w+) = \d+,", HEADER.read_text(), re.MULTILINE))
    for name, (_, _, _, flag, _) in STATES.items():
        if flag is not None and flag.split(",")[0] not in flags:
            raise SystemExit(f"block_states.py: {name}: {HEADER.name} has no flag {flag}")


def draw() -> str:
    require_flags()
    picture = Picture(
        WIDTH, HEIGHT, "The states of a block",
        "A free block becomes allocated by malloc and free again by free. A block used on other streams is first freeing, then "
        "pending. With thread caches a block is cached or lent. The page heap claims free blocks while it maps memory.")
    picture.text(20, 28, "The states of a block", size=16, bold=True)
    picture.text(20, 47, "allocator/blocks/block.h; split and merge create and remove blocks, and change only free ones", "soft", size=12)

    horizontal(picture, "free", "allocated", -8, "malloc")
    horizontal(picture, "allocated", "free", 14, "free")
    horizontal(picture, "cached", "lent", -8, "malloc, without the lock")
    horizontal(picture, "lent", "cached", 14, "free, without the lock")
    vertical(picture, "free", "cached", -50, "refill", left=True)
    vertical(picture, "cached", "free", 50, "drain", left=False)
    vertical(picture, "lent", "allocated", 50, "used on another stream", left=False)
    vertical(picture, "free", "claimed", -50, "plan", left=True)
    vertical(picture, "claimed", "free", 50, "plan done or undone", left=False)

    picture.line([(588, 210), (720, 210), (720, 288)], "edge", 1.3, arrow=True)
    picture.text(726, 238, "free, if used on", "soft", size=12)
    picture.text(726, 254, "other streams", "soft", size=12)
    picture.line([(720, 348), (720, 440), (592, 440)], "edge", 1.3, arrow=True)
    picture.text(726, 400, "events recorded", "soft", size=12)
    picture.line([(540, 238), (540, 408)], "edge", 1.3, arrow=True)
    picture.text(534, 330, "free during", "soft", size=12, anchor="end")
    picture.text(534, 346, "a graph capture", "soft", size=12, anchor="end")
    picture.line([(412, 440), (348, 440), (348, 232), (242, 232)], "edge", 1.3, arrow=True)
    picture.text(340, 420, "all events", "soft", size=12, anchor="end")
    picture.text(340, 434, "complete", "soft", size=12, anchor="end")
    for name, state in STATES.items():
        box(picture, name, *state)
    picture.text(20, HEIGHT - 44, "Not blocks, but the same structure:", size=12, bold=True)
    picture.text(20, HEIGHT - 24, "edge (the neighbour of a segment's first and last block), gap (addresses of the page heap "
                 "without memory), retired (an unused entry)", "soft", size=12)
    return picture.svg()


def box(picture: Picture, name: str, x: float, y: float, meaning: str, flag: str | None, colour: str) -> None:
    picture.rect(x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2, BOX_WIDTH, BOX_HEIGHT, colour, radius=8)
    picture.text(x, y - 10, name, anchor="middle", bold=True)
    picture.text(x, y + 6, meaning, "soft", size=12, anchor="middle")
    picture.text(x, y + 21, flag or "no flag", "soft", size=11, anchor="middle", code=True)


def horizontal(picture: Picture, start: str, end: str, shift: float, label: str) -> None:
    (x1, y1), (x2, y2) = STATES[start][:2], STATES[end][:2]
    half = BOX_WIDTH / 2 * (1 if x2 > x1 else -1)
    picture.line([(x1 + half, y1 + shift), (x2 - half - (4 if half > 0 else -4), y2 + shift)], "edge", 1.3, arrow=True)
    picture.text((x1 + x2) / 2, y1 + shift - 6, label, "soft", size=12, anchor="middle")


def vertical(picture: Picture, start: str, end: str, shift: float, label: str, left: bool) -> None:
    (x1, y1), (x2, y2) = STATES[start][:2], STATES[end][:2]
    half = BOX_HEIGHT / 2 * (1 if y2 > y1 else -1)
    picture.line([(x1 + shift, y1 + half), (x2 + shift, y2 - half - (4 if half > 0 else -4))], "edge", 1.3, arrow=True)
    picture.text(x1 + shift + (-6 if left else 6), (y1 + y2) / 2 + 4, label, "soft", size=12, anchor="end" if left else "start")
