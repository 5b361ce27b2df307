"""A diagram of a free in the order of a stream: the host runs ahead, memory is reused before the work on it has ended."""

from __future__ import annotations

from svg import Picture

WIDTH, HEIGHT = 860, 466
LEFT, RIGHT = 150, 840
TOP, LANE = 92, 76


def draw() -> str:
    picture = Picture(
        WIDTH, HEIGHT, "A free in the order of a stream",
        "The host allocates, launches and frees without waiting. On the same stream the memory is reused at once, because the next "
        "kernel runs after the last one. On another stream it is reused when the work has ended.")
    picture.text(20, 28, "A free takes effect where it stands in its stream", size=16, bold=True)
    picture.text(20, 47, "time goes from left to right; the host only queues work, the streams do it later", "soft", size=12)

    lane(picture, 0, "Host", "calls")
    lane(picture, 1, "Stream A", "work on memory M")
    lane(picture, 2, "Stream B", "of the same device")

    call(picture, 160, "M = allocate(A)")
    call(picture, 276, "kernel 1")
    call(picture, 346, "free(M)")
    call(picture, 412, "N = allocate(A)")
    call(picture, 531, "kernel 2")
    call(picture, 603, "free(N)")
    call(picture, 722, "P = allocate(B)")

    work(picture, 1, 300, 236, "kernel 1 uses M", "tint-orange")
    work(picture, 1, 540, 170, "kernel 2 uses N = M", "tint-green")
    work(picture, 2, 744, 88, "may use M", "tint-blue")

    down(picture, 302, 1, 318)
    down(picture, 552, 1, 566)
    picture.line([(540, lane_y(1) - 6), (540, lane_y(1) + 46)], "line-green", width=1.6, dashed=True)
    picture.line([(714, lane_y(1) - 6), (714, lane_y(2) + 46)], "line-blue", width=1.6, dashed=True)

    y = TOP + 3 * LANE + 18
    for colour, head, text in (
            ("tint-green", "The same stream: at once.", "N is M although kernel 1 still runs: kernel 2 is behind it in the stream."),
            ("tint-blue", "Another stream: when the work has ended,", "which an event behind the free tells (dashed); before, P would be other memory. On the page heap; PyTorch's policy keeps M for A."),
            ("tint-orange", "Memory that a second stream used:", "record_stream(M, B) before the free; M then waits for that stream's work, too.")):
        picture.rect(20, y, 16, 16, colour, radius=3)
        picture.text(44, y + 13, head, size=12.5, bold=True)
        picture.text(44, y + 31, text, "soft", size=12)
        y += 46
    return picture.svg()


def lane_y(index: int) -> float:
    return TOP + index * LANE


def lane(picture: Picture, index: int, name: str, what: str) -> None:
    y = lane_y(index)
    picture.text(20, y + 18, name, bold=True)
    picture.text(20, y + 35, what, "soft", size=12)
    picture.line([(LEFT, y + 20), (RIGHT, y + 20)], "grid", width=1, arrow=True)


def call(picture: Picture, x: float, text: str) -> None:
    width = 12 + 6.9 * len(text)
    picture.rect(x, lane_y(0) + 4, width, 32, "box", radius=4, edge="edge")
    picture.text(x + width / 2, lane_y(0) + 25, text, size=11, anchor="middle", code=True)


def work(picture: Picture, index: int, x: float, width: float, text: str, colour: str) -> None:
    picture.rect(x, lane_y(index), width - 6, 40, colour, radius=4)
    picture.text(x + width / 2 - 3, lane_y(index) + 25, text, size=12, anchor="middle")


def down(picture: Picture, x: float, index: int, to: float) -> None:
    picture.curve(f"M{x} {lane_y(0) + 38}C{x} {lane_y(0) + 58} {to} {lane_y(index) - 20} {to} {lane_y(index) - 3}", "line-grey")
