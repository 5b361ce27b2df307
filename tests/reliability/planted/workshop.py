"""Makes test programs with another text in place of a source file. Sources and build folder stay as they are."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from planted.bug import SOURCE


class CannotBeMade(Exception):
    """The bug cannot be made; the text is that of a compiler or linker, for instance."""


def has_all(build: Path, outputs: Iterable[str]) -> bool:
    """Returns whether a build folder is to have all of these libraries and programs."""
    targets = subprocess.run(["ninja", "-C", str(build), "--quiet", "-t", "targets", "all"], check=True,
                             capture_output=True, text=True).stdout
    return all(re.search(rf"^{re.escape(output)}(\.[\d.]+)?: ", targets, re.MULTILINE) for output in outputs)


@dataclass(frozen=True)
class Made:
    """A test program, and the shared libraries that are loaded before those it was linked with."""

    program: Path
    preloaded: tuple[Path, ...]


class Workshop:
    """Compiles and links as the build system does: the commands are Ninja's."""

    def __init__(self, build: Path, compilers: ThreadPoolExecutor) -> None:
        self._build = build
        self._compilers = compilers
        self._compile: dict[str, str] = {}  # by object
        self._link: dict[str, list[str]] = {}  # by program or library
        for line in self._ninja("-t", "commands").splitlines():
            for command in line.split(" && "):
                words = shlex.split(command) if " -o " in command or " qc " in command else []
                if "-c" in words:
                    self._compile[words[words.index("-o") + 1]] = command
                elif "-o" in words:
                    self._link[words[words.index("-o") + 1]] = words
                elif words[1:2] == ["qc"]:  # ar
                    self._link[words[2]] = words
        self._includes: dict[str, set[str]] = {}  # by object: its source and headers
        for part in self._ninja("-t", "deps").split("\n\n"):
            first, *files = part.split("\n")
            self._includes[first.split(": #deps")[0]] = {os.path.normpath(build / file.strip()) for file in files}

    def objects(self, library: str, programs: Iterable[str], file: str) -> set[str]:
        """The objects that a source file is compiled into: of a library; a header, of programs as well."""
        outputs = [self._output(library), *(programs if file.endswith(".h") else ())]
        found = {word for output in outputs for word in self._link[output]
                 if str(SOURCE / file) in self._includes.get(word, ())}
        if not found:
            raise CannotBeMade(f"{file} is not compiled for {library}")
        return found

    def compiled(self, objects: set[str], file: str, text: str, folder: Path) -> dict[str, Path]:
        """New objects, by those they replace, of sources in which the file has another text."""
        tree = folder / "tree"
        _plant(tree, SOURCE, Path(file).parts, text)
        made = {obj: folder / f"{number}.o" for number, obj in enumerate(sorted(objects))}
        for done in [self._compilers.submit(self._compile_in, tree, obj, made[obj]) for obj in made]:
            done.result()
        return made

    def linked(self, program: str, objects: dict[str, Path], folder: Path) -> Made:
        """The program and those shared libraries of it in which objects are replaced."""
        replaced = {}  # libraries with such objects
        for output in self._needs(program):
            words = self._link[output]
            inside = {word: objects[word] for word in words if word in objects}
            if not inside and not replaced.keys() & set(words):
                continue
            target = folder / output.replace("/", "_")
            if words[1] == "qc":
                rest = [str(self._build / word) for word in words[3:] if word not in inside]
                self._run(["ar", "qcT", str(target), *rest])
                replaced[output] = (target, inside)
                continue
            # New objects come first: of an inline function the linker takes the first.
            for _, archived in (replaced[word] for word in words if word in replaced):
                inside |= archived
            kept = [str(replaced[word][0]) if word in replaced else word for word in words if word not in inside]
            at = kept.index("-o")
            self._run([*kept[:at], "-o", str(target), *map(str, inside.values()), *kept[at + 2:]])
            replaced[output] = (target, {})
        shared = tuple(path for output, (path, _) in replaced.items() if ".so" in output)
        return Made(replaced[program][0] if program in replaced else self._build / program, shared)

    def _output(self, library: str) -> str:
        """A library's file: it may have a version behind its name."""
        return next(output for output in self._link if re.fullmatch(re.escape(library) + r"(\.[\d.]+)?", output))

    def _needs(self, program: str) -> list[str]:
        """The libraries that a program is linked with, those that others need first, and the program."""
        needs: list[str] = []
        for word in self._link[program]:
            if word in self._link and word != program:
                needs += [need for need in self._needs(word) if need not in needs]
        return [*needs, program]

    def _compile_in(self, tree: Path, obj: str, target: Path) -> None:
        words = [re.sub("^-O[g23]$", "-O1", word) for word in shlex.split(_moved(self._compile[obj], tree))
                 if not re.fullmatch(r"-Werror|ccache|-MD|-g", word)]
        source = Path(words[words.index("-c") + 1])
        if self._build.resolve() in source.resolve().parents:  # made by the build system: a unity file
            source = target.with_suffix(source.suffix)
            source.write_text(_moved(Path(shlex.split(self._compile[obj])[-1]).read_text(), tree))
        for flag in ("-o", "-c", "-MF", "-MT"):
            if flag in words:
                del words[words.index(flag):words.index(flag) + 2]
        self._run([*words, "-o", str(target), "-c", str(source)])

    def _ninja(self, *arguments: str) -> str:
        return subprocess.run(["ninja", "-C", str(self._build), "--quiet", *arguments], check=True, capture_output=True,
                              text=True).stdout

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(words, cwd=self._build, capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotBeMade(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")


def _moved(text: str, tree: Path) -> str:
    """The text with the tree in place of the sources' folder."""
    return re.sub(re.escape(str(SOURCE)) + r"(?![\w.-])", str(tree), text)


def _plant(tree: Path, original: Path, parts: tuple[str, ...], text: str) -> None:
    """Makes a folder of links to another's entries, except for one file."""
    tree.mkdir()
    for entry in original.iterdir():
        if entry.name != parts[0]:
            (tree / entry.name).symlink_to(entry)
    if len(parts) == 1:
        (tree / parts[0]).write_text(text)
    else:
        _plant(tree / parts[0], original / parts[0], parts[1:], text)
