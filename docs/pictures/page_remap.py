"""A diagram of the page heap serving a large request from scattered free pages."""

from __future__ import annotations

from svg import Picture

WIDTH, HEIGHT = 860, 478
SLOT, LEFT = 54, 176
# The addresses before: live blocks, and free handles of two pages, each with its number of pages.
LAYOUT = [("A", 2), ("1", 2), ("B", 1), ("2", 2), ("C", 1)]
PAGES = sum(pages for _, pages in LAYOUT)
FREE = [(name, pages) for name, pages in LAYOUT if name.isdigit()]


def draw() -> str:
    picture = Picture(
        WIDTH, HEIGHT, "How the page heap combines scattered free memory",
        "Two free handles of 4 MiB lie between live blocks. A request for 8 MiB gets new addresses, where both handles are "
        "mapped a second time, side by side: no new memory, and no copies.")
    picture.text(20, 28, "Scattered free memory serves a large request by a second mapping", size=16, bold=True)
    picture.text(20, 47, "each square is a page of 2 MiB; a handle is the physical memory of one driver call, here 2 pages", "soft", size=12)

    row(picture, 76, "Before", "addresses")
    boxes(picture, LEFT, 76, LAYOUT)
    side = LEFT + PAGES * SLOT + 12
    picture.text(side, 95, "4 pages (8 MiB) are free,", "soft", size=12)
    picture.text(side, 111, "but not side by side", "soft", size=12)

    row(picture, 160, "8 MiB requested", "PyTorch's policy")
    boxes(picture, LEFT, 160, LAYOUT)
    boxes(picture, side, 160, [("new", 4)])
    picture.text(LEFT, 226, f"{PAGES + 4} pages are reserved; the free ones stay unused", "soft", size=12)

    row(picture, 274, "8 MiB requested", "page heap")
    boxes(picture, LEFT, 274, [(name if name.isalpha() else "gap", pages) for name, pages in LAYOUT])
    boxes(picture, side, 274, FREE, colour="tint-blue")
    start, target = float(LEFT), side
    for name, pages in LAYOUT:
        if name.isdigit():
            x1, x2 = start + pages * SLOT / 2 - 3, target + pages * SLOT / 2 - 3
            picture.curve(f"M{x1:.0f} 274C{x1:.0f} {236 + 8 * int(name)} {x2:.0f} {236 + 8 * int(name)} {x2:.0f} 270", "line-blue")
            target += pages * SLOT
        start += pages * SLOT
    picture.text(LEFT, 340, f"{PAGES} pages are reserved; the old places are gaps without memory", "soft", size=12)
    picture.text(side, 340, "new addresses, the same pages", "blue", size=12)

    legend(picture, 366)
    picture.text(20, 416, "No wait is needed: work queued earlier on the stream finishes before work on the new block begins.",
                 "soft", size=12)
    picture.text(20, 436, "The old mapping is kept until it is in the way, so the pages can return to it without a driver call.",
                 "soft", size=12)
    picture.text(20, 456, "A handle is always mapped whole; if only its first pages are free, they can serve the end of a request.",
                 "soft", size=12)
    return picture.svg()


def row(picture: Picture, y: float, title: str, what: str) -> None:
    picture.text(20, y + 18, title, bold=True)
    picture.text(20, y + 36, what, "soft", size=12)


def boxes(picture: Picture, x: float, y: float, contents: list[tuple[str, int]], colour: str = "") -> None:
    """Blocks, handles or gaps side by side, with a line between their pages."""
    for name, pages in contents:
        width = pages * SLOT - 6
        if name == "gap":
            picture.rect(x, y, width, 44, "page", radius=4, edge="edge", dashed=True)
        else:
            live = name.isalpha() and name != "new"
            fill = colour or ("grey" if live else "tint-orange" if name == "new" else "tint-green")
            picture.rect(x, y, width, 44, fill, radius=4)
            for i in range(1, pages):
                picture.line([(x + i * SLOT - 3, y + 4), (x + i * SLOT - 3, y + 40)], "grid", dashed=True)
            label = name if live else "new memory" if name == "new" else f"handle {name}" if colour else f"free, handle {name}"
            picture.text(x + width / 2, y + 27, label, size=14 if live else 12, anchor="middle", bold=live)
        x += pages * SLOT


def legend(picture: Picture, y: float) -> None:
    at = 20.0
    for colour, label in (("grey", "live blocks A, B, C"), ("tint-green", "free memory"), ("tint-orange", "new memory"),
                          ("tint-blue", "free memory, mapped again"), ("", "gap without memory")):
        if colour:
            picture.rect(at, y, 16, 16, colour, radius=3)
        else:
            picture.rect(at, y, 16, 16, "page", radius=3, edge="edge", dashed=True)
        picture.text(at + 22, y + 13, label, "soft", size=12)
        at += 44 + 7 * len(label)
