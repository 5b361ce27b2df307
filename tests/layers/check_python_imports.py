"""No module of a Python package imports itself through others: imports within functions count, those for types alone do not.

usage: check_python_imports.py [FOLDER...], each a package; without one the packages of the repository
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
PACKAGES = [SOURCE / "pytorch/cachalot", SOURCE / "simulator/python/cachalot_simulator"]


def modules_of(package: Path) -> dict[str, Path]:
    """The package's modules by their names from the package on: "_leaks", "integrations.cupy"; "" is the package itself."""
    files = sorted(package.rglob("*.py"))
    return {".".join(file.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip("."): file for file in files}


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The statements within, without those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from at_run_time(child)


def names_imported(tree: ast.AST, package: str, folder: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the imports of a module in the folder (of names within the package): a name within the package and, behind it, one
    that it has.

    `from .room import thing` is ("room", "thing"), where the thing may be a module.
    """
    for node in at_run_time(tree):
        if isinstance(node, ast.ImportFrom):
            words = node.module.split(".") if node.module else []
            if node.level == 0 and words[0] != package:
                continue
            base = ".".join([*folder[: len(folder) - node.level + 1], *words] if node.level else words[1:])
            yield from ((base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[2], "") for alias in node.names if alias.name.split(".")[0] == package)


def imports_of(package: Path) -> dict[str, set[str]]:
    modules = modules_of(package)
    imports: dict[str, set[str]] = {}
    for name, file in modules.items():
        found = names_imported(ast.parse(file.read_text()), package.name, list(file.relative_to(package).parts[:-1]))
        others = {inner if (inner := f"{base}.{thing}".strip(".")) in modules else base for base, thing in found}
        # The package itself looks its names up when they are asked for: taking one is no import of a module.
        imports[name] = {other for other in others if other and other in modules and other != name}
    return imports


def circle_of(package: Path) -> list[str]:
    """Modules of which each imports the next, and the last the first; empty if there are none."""
    try:
        TopologicalSorter(imports_of(package)).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def main(folders: list[str]) -> int:
    failed = False
    for package in [Path(folder) for folder in folders] or PACKAGES:
        circle = circle_of(package)
        failed |= bool(circle)
        print(f"{package.name}: {' imports '.join(circle)}" if circle else f"{package.name}: {len(imports_of(package))} modules, no circle")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
