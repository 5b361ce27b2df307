"""MkDocs hooks: pages that live beside the code they describe, and links from pages to files of the repository.

Links in the documents are those of the repository, so that they work when it is browsed. On the site, a link to a document
leads to its page, a link to a public header to its reference, and a link to any other file is shown as text. Without
the reference, which doxygen writes, links to headers are text as well.

The site looks as the pages of --html do: their logo, colours and fonts come from tools/html.

The search shows what readers use before what developers keep: the score of a page is multiplied by the boost of its section.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from jinja2 import ChoiceLoader, DictLoader
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOXYGEN = ROOT / "build" / "doxygen" / "html"
DOXYGEN_AT = "reference/api"

WHALE = ROOT / "tools" / "html" / "whale.svg"
REPORT_STYLE = ROOT / "tools" / "html" / "report.css"
SITE_STYLE = ROOT / "docs" / "site" / "site.css"

# Pages outside of docs/: document -> where it is on the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "releases/changelog.md",
    "CONTRIBUTING.md": "develop/contributing.md",
    "RELEASING.md": "develop/releasing.md",
    "SECURITY.md": "releases/security.md",
    "SKILL.md": "tools/agents.md",
    "allocator/README.md": "develop/allocator.md",
    "bench/peers/README.md": "benchmarks/peers.md",
    "data/README.md": "develop/data.md",
    "data/accuracy/README.md": "develop/data-accuracy.md",
    "data/golden/README.md": "develop/data-golden.md",
    "data/gpu_traces/README.md": "develop/data-gpu-traces.md",
    "data/snapshots/README.md": "develop/data-snapshots.md",
    "data/traces/README.md": "tools/traces.md",
    "examples/README.md": "examples/index.md",
    "packaging/README.md": "develop/packaging.md",
    "kernels/README.md": "reference/kernels.md",
    "pool/README.md": "guides/tensor-pools.md",
    "pytorch/README.md": "reference/pytorch.md",
    "simulator/README.md": "tools/simulator.md",
} | {f"examples/{path.parent.name}/README.md": f"examples/{path.parent.name}.md" for path in ROOT.glob("examples/*/README.md")}

# Boosts in the search by the section of the navigation. A word in a title counts a thousand times as much as one in the text.
BOOSTS = {"Get started": 2, "Answers": 2, "Guides": 2, "Tools": 2, "Reference": 2, "Examples": 0.5, "Releases": 0.1, "Develop": 0.1}
BOOST_OF_DATA = 0.05
BOOST_BESIDE_NAVIGATION = 0.002  # decisions and measurements: a title counts as much as a word in the text of a guide

VARIABLES = re.compile(r"^:root(\[data-theme=\"dark\"\])? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")


def page_variables() -> dict[bool, str]:
    """The variables of the pages of --html, such as "--ink: #17212b; ...": those of light pages, and under True what dark ones change."""
    found = {rule[1] is not None: rule[2].replace("--shadow", "--card-shadow") for rule in VARIABLES.finditer(REPORT_STYLE.read_text())}
    if found.keys() != {False, True} or any("--accent:" not in each for each in found.values()):
        raise ValueError(f"hooks.py: {REPORT_STYLE} has not the variables of light and dark pages")
    return found


def site_style() -> str:
    variables = page_variables()
    return f":root {{\n{variables[False]}}}\n[data-md-color-scheme=\"slate\"] {{\n{variables[True]}}}\n{SITE_STYLE.read_text()}"


def favicon() -> str:
    accent = re.search(r"--accent: (#\w+)", page_variables()[False])
    return WHALE.read_text().replace("currentColor", accent[1])


def on_env(env, config, files: Files):
    env.loader = ChoiceLoader([env.loader, DictLoader({".icons/cachalot/whale.svg": WHALE.read_text()})])
    return env


def on_files(files: Files, config) -> Files:
    files.append(File.generated(config, "assets/site.css", content=site_style()))
    files.append(File.generated(config, "assets/whale.svg", content=favicon()))
    for document, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text()))
    for path in sorted(DOXYGEN.rglob("*")):
        if path.is_file():
            name = path.relative_to(DOXYGEN).as_posix()
            files.append(File.generated(config, f"{DOXYGEN_AT}/{name}", abs_src_path=str(path)))
    return files


def on_nav(nav, config, files: Files) -> None:
    titles = {section.title for page in nav.pages for section in page.ancestors}
    if missing := BOOSTS.keys() - titles:
        raise ValueError(f"hooks.py: the navigation has no section {', '.join(sorted(missing))}")


def search_boost(page, document: str) -> float:
    if page.file.inclusion.is_not_in_nav():
        return BOOST_BESIDE_NAVIGATION
    if document.startswith("data/"):
        return BOOST_OF_DATA
    return next((BOOSTS[section.title] for section in page.ancestors if section.title in BOOSTS), 1)


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    page_path = page.file.src_uri
    document = next((document for document, at in PAGES.items() if at == page_path), f"docs/{page_path}")
    page.meta["search"] = {"boost": search_boost(page, document)}

    def link(found: re.Match[str]) -> str:
        is_picture, text, target = found.groups()
        new = site_link(target, document, page_path)
        if new is None:
            return "" if is_picture else text
        return f"{is_picture}[{text}]({new})"

    lines = []
    in_code = False
    for line in markdown.splitlines():
        if FENCE.match(line):
            in_code = not in_code
        lines.append(line if in_code or line.startswith("    ") else LINK.sub(link, line))
    return "\n".join(lines) + "\n"


def site_link(target: str, document: str, page_path: str) -> str | None:
    """The link on the site; None for a file that has no page."""
    if re.match(r"[a-z]+:|#", target):
        return target
    name, _, anchor = target.partition("#")
    anchor = f"#{anchor}" if anchor else ""
    in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(document), name))
    page = PAGES.get(in_repository) or PAGES.get(f"{in_repository}/README.md")
    if page is None and in_repository.startswith("docs/"):
        page = in_repository.removeprefix("docs/")
        if (ROOT / in_repository).is_dir():
            page += "/README.md"
        elif not (ROOT / in_repository).exists() and not page.startswith(f"{DOXYGEN_AT}/"):
            raise FileNotFoundError(f"{document}: the file {target} does not exist")
    if page is None and "/include/cachalot/" in in_repository:
        page = f"{DOXYGEN_AT}/{doxygen_page(posixpath.basename(in_repository))}"
    if page is None:
        if not (ROOT / in_repository).exists():
            raise FileNotFoundError(f"{document}: the file {target} does not exist")
        return None
    if page.startswith(f"{DOXYGEN_AT}/") and not DOXYGEN.is_dir():
        return None
    return posixpath.relpath(page, posixpath.dirname(page_path) or ".") + anchor


def doxygen_page(header: str) -> str:
    """The page of a header, named as Doxygen names it."""
    return header.replace("_", "__").replace(".", "_8") + ".html"
