#!/usr/bin/env python3
"""Checks a built site: every link inside it leads to a file and an anchor, and nothing is loaded from the network.

    check_links.py SITE

Links to other sites are not followed. The pages that doxygen wrote are checked as targets only: doxygen checks its own.
"""

from __future__ import annotations

import functools
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {("a", "href")}
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
# <link> elements that a browser does not load.
NAMES_ONLY = {"canonical", "prev", "next", "alternate"}
DOXYGEN_AT = Path("reference") / "api"


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # target, whether a browser loads it with the page
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        for name, value in attributes:
            is_loaded = (tag, name) in LOADED and values.get("rel") not in NAMES_ONLY
            if value and (is_loaded or (tag, name) in LINKS):
                self.links.append((value, is_loaded))


@functools.cache
def page_of(path: Path) -> Page:
    return Page(path.read_text(errors="replace"))


def finding(site: Path, page: Path, target: str, is_loaded: bool) -> str | None:
    """The mistake in a link; None for a good one."""
    parts = urlsplit(target)
    if parts.scheme in ("data", "mailto", "javascript"):
        return None
    if parts.scheme or parts.netloc:
        return "is loaded from the network" if is_loaded else None
    if parts.path.startswith("/"):
        return "is absolute, which does not work from a file"
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not file.is_relative_to(site) or not file.is_file():
        return "leads to no file of the site"
    if parts.fragment and file.suffix == ".html" and unquote(parts.fragment) not in page_of(file).anchors | {"__skip"}:
        return "leads to an anchor that does not exist"
    return None


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: check_links.py SITE")
    site = Path(sys.argv[1]).resolve()
    pages = [page for page in sorted(site.rglob("*.html")) if not page.relative_to(site).is_relative_to(DOXYGEN_AT)]
    count = 0
    findings = []
    for page in pages:
        if page.name == "404.html":
            continue  # a server sends it for any path: its links are absolute
        for target, is_loaded in page_of(page).links:
            count += 1
            if mistake := finding(site, page, target, is_loaded):
                findings.append(f"{page.relative_to(site)}: {target} {mistake}")
    for line in findings:
        print(line)
    print(f"check_links.py: {len(pages)} pages, {count} links, {len(findings)} mistakes")
    return 1 if findings or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
