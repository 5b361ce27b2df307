#!/usr/bin/env python3
"""Writes a folder of libraries to link with, so that the linked code runs on every system of a manylinux policy.

    python3 old_libraries.py build/old-libraries --policy manylinux_2_28
    python3 old_libraries.py build/old-libraries --policy manylinux_2_28 --arch aarch64

A linker binds a function to the newest version that the libraries at hand define, and a program then needs that version
where it runs. The folder has libraries without code that define what the policy allows and nothing else, under the names
and versions of the real ones (libc.so.6, libstdc++.so.6, …): `-B<folder> -L<folder>` makes GCC link with them. A function
that the policy does not allow is then an error of the linker, unless compat.c has it, which is in the folder as an archive.

The versions come from this machine's own libraries, or from those of the cross compiler for --arch, which keep the old ones
permanently, and the policy from auditwheel.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from processors import MACHINE, PROCESSORS, tool  # noqa: E402

# Since glibc 2.34 libc.so.6 has the functions of these libraries, and says so by a second version of each.
MOVED_TO_LIBC = {
    "libdl.so.2": r"dl(open|sym|close|error|addr1?|info|mopen|vsym)",
    "librt.so.1": r"(aio|lio|mq|timer|shm)_\w+",
    "libpthread.so.0": r"_*pthread_\w+|sem_\w+|(thrd|mtx|cnd|tss)_\w+|call_once",
}

# Members of libstdc++.a that stand by themselves: std::from_chars and std::to_chars of floating-point numbers, and memory.
FROM_STATIC_LIBRARY = ("floating_from_chars.o", "floating_to_chars.o", "memory_resource.o")


class Symbol(NamedTuple):
    """A definition of a shared library."""

    name: str
    version: str  # "GLIBC_2.14"
    is_default: bool  # the one that a linker takes
    kind: str  # FUNC, IFUNC, OBJECT, TLS or NOTYPE
    binding: str  # "weak" or "globl", as the assembler says it
    address: int
    size: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--policy", default="manylinux_2_28")
    parser.add_argument("--arch", choices=PROCESSORS, default=MACHINE, help="the processor (this machine's)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = arguments.folder.resolve()
    allowed = allowed_versions(arguments.policy, arguments.arch)
    for name, symbols in libraries(arguments.arch).items():
        write_library(folder / name, newest_allowed(symbols, allowed), arguments.arch)
    write_compat(folder, arguments.arch)
    write_linker_scripts(folder, arguments.arch)


def allowed_versions(policy: str, arch: str) -> set[str]:
    """The versions that a policy allows, as auditwheel has them: {"GLIBC_2.28", …}."""
    import auditwheel

    policies = json.loads((Path(auditwheel.__file__).parent / "policy" / "manylinux-policy.json").read_text())
    (found,) = (each for each in policies if policy in (each["name"], *each["aliases"]))
    families = found["symbol_versions"][arch]
    return {f"{family}_{version}" for family, versions in families.items() for version in versions}


def libraries(arch: str) -> dict[str, list[Symbol]]:
    """The libraries' names, and what each defined before functions moved."""
    result: dict[str, list[Symbol]] = defaultdict(list)
    for name in ("libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", PROCESSORS[arch].dynamic_linker):
        result[name] = definitions(name, arch)
    symbols = definitions("libc.so.6", arch)
    newest = {symbol.name: symbol.version for symbol in symbols if symbol.is_default}
    for symbol in symbols:
        has_moved = not symbol.is_default and newest.get(symbol.name) == "GLIBC_2.34"
        result[former_home(symbol.name) if has_moved else "libc.so.6"].append(symbol)
    del result[""]
    return result


def former_home(name: str) -> str:
    """Returns the library that had the function; "" if it is not a library of this folder."""
    if name == "__libc_start_main":  # did not move: its meaning changed (start.c)
        return "libc.so.6"
    return next((library for library, names in MOVED_TO_LIBC.items() if re.fullmatch(names, name)), "")


def definitions(library: str, arch: str) -> list[Symbol]:
    path = run(tool("gcc", arch), f"-print-file-name={library}").strip()
    table = run("readelf", "--wide", "--dyn-syms", path)
    symbols = []
    for line in table.splitlines():
        # Num: Value Size Type Bind Vis Ndx Name@Version
        words = line.split()
        if len(words) != 8 or not words[0].rstrip(":").isdigit() or words[6] == "UND" or "@" not in words[7]:
            continue
        name, separator, version = words[7].partition("@@" if "@@" in words[7] else "@")
        if words[6] == "ABS":  # the name of a version
            continue
        binding = "weak" if words[4] == "WEAK" else "globl"
        symbols.append(Symbol(name, version, separator == "@@", words[3], binding, int(words[1], 16), int(words[2], 0)))
    assert symbols, f"{path} defines nothing"
    return symbols


def newest_allowed(symbols: Iterable[Symbol], allowed: set[str]) -> list[Symbol]:
    """One definition of each name: that of the newest version allowed."""
    newest: dict[str, Symbol] = {}
    for symbol in symbols:
        if symbol.version in allowed:
            known = newest.get(symbol.name)
            if known is None or number(symbol.version) > number(known.version):
                newest[symbol.name] = symbol
    return list(newest.values())


def number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def write_library(path: Path, symbols: list[Symbol], arch: str) -> None:
    """A shared library that defines the symbols, and has no code."""
    versions: dict[str, list[str]] = defaultdict(list)
    for symbol in symbols:
        versions[symbol.version].append(symbol.name)
    script = path.with_suffix(".map")
    nodes = [f"{version} {{ global: {' '.join(map(quoted, names))} }};" for version, names in sorted(versions.items())]
    script.write_text("\n".join(nodes) + "\nNOTHING_ELSE { local: *; };\n")
    assembly = path.with_suffix(".s")
    assembly.write_text("\n".join(assembly_of(symbols)) + "\n")
    link = ["-shared", "-nostdlib", f"-Wl,-soname,{path.name}", f"-Wl,--version-script={script}"]
    run(tool("gcc", arch), *link, str(assembly), "-o", str(path))
    assembly.unlink()
    script.unlink()


def quoted(name: str) -> str:
    return f'"{name}";'


def assembly_of(symbols: list[Symbol]) -> Iterable[str]:
    yield ".text"
    variables: dict[tuple[str, int], list[Symbol]] = defaultdict(list)
    for symbol in symbols:
        if symbol.kind in ("OBJECT", "TLS"):
            variables[symbol.kind, symbol.address].append(symbol)
        else:
            yield f'.{symbol.binding} "{symbol.name}"\n.type "{symbol.name}",@function\n"{symbol.name}": ret'
    # Names of one variable stay at one address, and weak ones weak: a program that has a copy of it (R_X86_64_COPY,
    # R_AARCH64_COPY) then has it under all of them.
    for (kind, _), names in variables.items():
        section, type_ = ('.section .tbss,"awT",@nobits', "tls_object") if kind == "TLS" else (".bss", "object")
        yield f"{section}\n.balign 32"
        for symbol in names:
            yield f'.{symbol.binding} "{symbol.name}"\n.type "{symbol.name}",@{type_}\n.size "{symbol.name}",{symbol.size}'
            yield f'"{symbol.name}":'
        yield f".skip {max(max(symbol.size for symbol in names), 1)}"


def write_compat(folder: Path, arch: str) -> None:
    """Writes the needed functions that the policy's libraries lack, and the start of programs before glibc 2.34."""
    flags = ["-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-c"]
    for source in ("compat.c", "compat_cxx.cpp", "start.c"):
        standard = "-std=c++20" if source.endswith(".cpp") else "-std=gnu11"
        run(tool("gcc", arch), *flags, standard, str(HERE / source), "-o", str((folder / source).with_suffix(".o")))
    archive(folder / "libcompat.a", [folder / "compat.o"], arch)
    members = [folder / name for name in FROM_STATIC_LIBRARY]
    static_library = run(tool("gcc", arch), "-print-file-name=libstdc++.a").strip()
    run(tool("ar", arch), "x", "--output", str(folder), static_library, *FROM_STATIC_LIBRARY)
    archive(folder / "libcompat_cxx.a", [folder / "compat_cxx.o", *members], arch)
    # GCC looks for these first where -B says; Scrt1.o begins position-independent programs, crt1.o others.
    for name in ("Scrt1.o", "crt1.o"):
        shutil.copy(folder / "start.o", folder / name)


def archive(path: Path, members: list[Path], arch: str) -> None:
    path.unlink(missing_ok=True)
    run(tool("ar", arch), "rcs", str(path), *map(str, members))


def write_linker_scripts(folder: Path, arch: str) -> None:
    """Writes the files that -lc, -lm and so on name."""
    nonshared = run(tool("gcc", arch), "-print-file-name=libc_nonshared.a").strip()
    moved = " ".join(str(folder / name) for name in MOVED_TO_LIBC)
    scripts = {
        "libc.so": f"GROUP({folder}/libc.so.6 {nonshared} {folder}/libcompat.a "
        f"AS_NEEDED({moved} {folder}/{PROCESSORS[arch].dynamic_linker}))",
        "libstdc++.so": f"GROUP({folder}/libstdc++.so.6 {folder}/libcompat_cxx.a)",
        "libm.so": f"INPUT({folder}/libm.so.6)",
        "libgcc_s.so": f"GROUP({folder}/libgcc_s.so.1 -lgcc)",  # the archive has atomic operations of Arm
        "libdl.so": f"INPUT(AS_NEEDED({folder}/libdl.so.2))",
        "librt.so": f"INPUT(AS_NEEDED({folder}/librt.so.1))",
        "libpthread.so": f"INPUT(AS_NEEDED({folder}/libpthread.so.0))",
    }
    for name, text in scripts.items():
        (folder / name).write_text(text + "\n")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
