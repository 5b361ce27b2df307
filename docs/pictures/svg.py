"""A small writer of SVG pictures that are readable on light and on dark pages: each has a background of its own."""

from __future__ import annotations

from xml.sax.saxutils import escape

# class: (property, light, dark). Page, ink, soft, grid and blue are those of the pages of --html (tools/html/report.css).
COLOURS = {
    "page": ("fill", "#ffffff", "#161c23"),
    "ink": ("fill", "#17212b", "#e6ebf0"),
    "soft": ("fill", "#5b6875", "#98a5b2"),
    "onfill": ("fill", "#ffffff", "#14161a"),
    "box": ("fill", "#f1f4f8", "#2a2f39"),
    "edge": ("stroke", "#8b949e", "#7d8590"),
    "grid": ("stroke", "#dde3e9", "#2a343e"),
    "grey": ("fill", "#b4bcc6", "#5c6672"),
    "orange": ("fill", "#c8571b", "#f0935a"),
    "blue": ("fill", "#0072b2", "#56b4e9"),
    "green": ("fill", "#22764b", "#5fc790"),
    "purple": ("fill", "#7a4fb0", "#b993ea"),
    "tint-orange": ("fill", "#fbe3d5", "#4f3323"),
    "tint-blue": ("fill", "#dcebfa", "#22405c"),
    "tint-green": ("fill", "#dcf2e5", "#24452f"),
    "tint-grey": ("fill", "#e9ecf0", "#343a44"),
    "line-orange": ("stroke", "#c8571b", "#f0935a"),
    "line-blue": ("stroke", "#0072b2", "#56b4e9"),
    "line-green": ("stroke", "#22764b", "#5fc790"),
    "line-grey": ("stroke", "#8b949e", "#7d8590"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Picture:
    """Elements in the order they are added. Coordinates are pixels of the viewBox."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width = width
        self.height = height
        self._parts = [f"<title>{escape(title)}</title>", f"<desc>{escape(description)}</desc>"]
        self.rect(0, 0, width, height, "page", radius=8)

    def text(self, x: float, y: float, text: str, colour: str = "ink", size: float = 13, anchor: str = "start",
             bold: bool = False, code: bool = False) -> None:
        style = f' font-size="{number(size)}"'
        style += f' text-anchor="{anchor}"' if anchor != "start" else ""
        style += ' font-weight="600"' if bold else ""
        style += ' font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace"' if code else ""
        self._parts.append(f'<text class="{colour}" x="{number(x)}" y="{number(y)}"{style}>{escape(text)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, colour: str, radius: float = 0,
             edge: str = "", dashed: bool = False) -> None:
        more = f' rx="{number(radius)}"' if radius else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<rect class="{" ".join(filter(None, [colour, edge]))}" x="{number(x)}" y="{number(y)}" '
            f'width="{number(width)}" height="{number(height)}"{more}/>')

    def line(self, points: list[tuple[float, float]], colour: str = "edge", width: float = 1, arrow: bool = False,
             dashed: bool = False) -> None:
        more = ' marker-end="url(#arrow)"' if arrow else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        self._parts.append(f'<path class="{colour} line" stroke-width="{number(width)}" d="{path}"{more}/>')

    def curve(self, path: str, colour: str = "edge", width: float = 1.3) -> None:
        self._parts.append(
            f'<path class="{colour} line" stroke-width="{number(width)}" d="{path}" marker-end="url(#arrow)"/>')

    def area(self, points: list[tuple[float, float]], colour: str, opacity: float = 1) -> None:
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + "Z"
        more = f' fill-opacity="{opacity}"' if opacity != 1 else ""
        self._parts.append(f'<path class="{colour}" d="{path}"{more}/>')

    def svg(self) -> str:
        body = "\n".join(self._parts)
        used = {name: colours for name, colours in COLOURS.items() if name in body}
        light = "".join(f".{name}{{{kind}:{value}}}" for name, (kind, value, _) in used.items())
        dark = "".join(f".{name}{{{kind}:{value}}}" for name, (kind, _, value) in used.items())
        marker = ('<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                  'orient="auto-start-reverse"><path class="soft" d="M0 .5 8 4 0 7.5z"/></marker>')
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="{FONT}">\n'
            f"<style>{light}.line{{fill:none}}@media(prefers-color-scheme:dark){{{dark}}}</style>\n"
            f"<defs>{marker}</defs>\n{body}\n</svg>\n")
