"""No module of a Python package imports itself through others, or from a room above its own: imports within functions count, those for
types alone do not. One module of a package handles environment variables, so that they have one way to be read and refused.

usage: check_python_imports.py [FOLDER...], each a package; without one the packages of the repository
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
PACKAGES = [SOURCE / "pytorch/cachalot", SOURCE / "simulator/python/cachalot_simulator"]

# The rooms of each package, lowest first: a module imports from its own room and from lower ones. A line is a room: its folders, and "."
# for the modules in the package's root.
RANKS = {
    "cachalot": ["_base", "_bindings", "_heap", "integrations", "_tensors", "_leaks", "_programs", "_report", "_start", "."],
    "cachalot_simulator": [". compute"],
}
# The modules that a package has in its root, where its other modules have rooms.
FACES = {"cachalot": {"__init__", "__main__", "_version", "numba", "pytest_plugin", "torch_memory_saver"}}
# The only module of a package that names what reads or changes environment variables.
READERS = {"cachalot": "_base/environment.py"}
_ENVIRONMENT = re.compile(r"\b(?:environb?|getenvb?|putenv|unsetenv)\b")


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
    """The modules that each module imports, the package itself among them."""
    modules = modules_of(package)
    imports: dict[str, set[str]] = {}
    for name, file in modules.items():
        found = names_imported(ast.parse(file.read_text()), package.name, list(file.relative_to(package).parts[:-1]))
        others = {inner if (inner := f"{base}.{thing}".strip(".")) in modules else base for base, thing in found}
        imports[name] = {other for other in others if other in modules and other != name}
    return imports


def circle_of(package: Path) -> list[str]:
    """Modules of which each imports the next, and the last the first; empty if there are none."""
    try:
        # The package itself looks its names up when they are asked for: taking one is not an import of a module.
        TopologicalSorter({name: others - {""} for name, others in imports_of(package).items()}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def rank_in(rooms: list[str], folder: Path) -> int | None:
    """The rank of a folder of the package, which may lie within a room's; None if it has no room."""
    names = {str(outer) for outer in [folder, *folder.parents] if outer == folder or outer != Path()}
    return next((rank for rank, room in enumerate(rooms) if names & set(room.split())), None)


def broken_ranks(package: Path, rooms: list[str], face: set[str] | None = None) -> list[str]:
    """A line for each import from a higher room, for each folder without a room, and for each module in the root beside the face."""
    files = {name: file.relative_to(package) for name, file in modules_of(package).items()}
    ranks = {name: rank_in(rooms, file.parent) for name, file in files.items()}
    lines = [f"{file} lies in no room: give its folder a rank in check_python_imports.py" for name, file in files.items() if ranks[name] is None]
    lines += [f"{file} lies in the root, which has the package's face alone ({', '.join(sorted(face))}): move it into a room"
              for file in files.values() if face is not None and file.parent == Path() and file.stem not in face]
    for name, others in imports_of(package).items():
        own = ranks[name]
        for other in sorted(others):
            rank = ranks[other]
            if own is not None and rank is not None and rank > own:
                lines.append(f"{files[name]} (room {rooms[own]}) imports {files[other]} (room {rooms[rank]}): a module imports from its own "
                             f"room and from lower ones")
    return lines


def other_readers(package: Path, reader: str) -> list[str]:
    """A line for each module beside the reader that names a way to read or change environment variables, be it in a comment."""
    found = {file: _ENVIRONMENT.search(file.read_text()) for file in modules_of(package).values() if file != package / reader}
    return [f"{file.relative_to(package)} names {match[0]}: {reader} alone handles environment variables" for file, match in found.items() if match]


def main(folders: list[str]) -> int:
    failed = False
    for package in [Path(folder) for folder in folders] or PACKAGES:
        circle = circle_of(package)
        rooms = RANKS.get(package.name, [])
        broken = broken_ranks(package, rooms, FACES.get(package.name)) if rooms else []
        broken += other_readers(package, READERS[package.name]) if package.name in READERS else []
        failed |= bool(circle or broken)
        for line in broken + ([" imports ".join(circle)] if circle else []):
            print(f"{package.name}: {line}")
        if not circle and not broken:
            print(f"{package.name}: {len(imports_of(package))} modules, rooms: {len(rooms)}, no circle, and no import from a higher room")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
