#!/usr/bin/env python3
"""Reports what has grown too large to be read: headers, files, functions and classes of the product's C++; and what units.py reports.

    check_structure.py [--table] [--root FOLDER]

Each finding is a line "file:line: what, figure, limit"; the exit status is 1 if there is one. --table prints the ten largest of
each kind instead. A class has the functions and data that its definition lists; nested types do not count.
"""

import argparse
import pathlib
import sys
import typing

import cpp_scanner
import units

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = units.FOLDERS
HEADERS = {".h", ".cuh"}
SOURCES = {".cpp", ".cu", ".c"}  # an .inc is a table

LIMITS = {"header": 450, "file": 700, "function": 60, "class": 60}
UNITS = {"header": "lines", "file": "lines", "function": "lines", "class": "members"}

# The exceptions that may be larger, with the reason: kind, file, name. An entry that nothing needs is a finding, too.
ALLOWED = {
    ("function", "simulator/models/device_attributes.cpp", "device_attribute"): "a table as a switch",
    ("class", "allocator/device/cuda_driver.h", "CudaDriver"): "a table: a pointer for each function of the driver",
    ("class", "simulator/device/include/cachalot/simulated_device.h", "SimulatedDevice"): "Device's functions, and its own controls",
    ("class", "simulator/runtime/cuda12.cpp", "DeviceProp12"): "a struct of CUDA 12",
}

# The parts that are too large today, with their figures, which may not grow. The list is to be emptied.

KNOWN: dict[tuple[str, str, str], int] = {}


class Thing(typing.NamedTuple):
    kind: str
    path: str
    line: int
    name: str
    figure: int

    def key(self):
        return (self.kind, self.path, self.name)

    def text(self):
        what = f"{self.kind} {self.name}".rstrip()
        return f"{self.path}:{self.line}: {what}, {self.figure} {UNITS[self.kind]}, limit {LIMITS[self.kind]}"

def files_of(root):
    for folder in FOLDERS:
        yield from sorted(file for file in (root / folder).rglob("*") if file.suffix in HEADERS | SOURCES and file.is_file())

def things_of(file, path):
    source = file.read_text(encoding="utf-8")
    functions, classes = cpp_scanner.scan(source)
    yield Thing("header" if file.suffix in HEADERS else "file", path, 1, "", source.count("\n"))
    for each in functions:
        yield Thing("function", path, each.line, each.name, each.lines)
    for each in classes:
        yield Thing("class", path, each.line, each.name or "(without a name)", each.members)

def collect(root):
    """Returns all things of the folders, and a finding for each file that cannot be followed."""
    things, findings = [], []
    for file in files_of(root):
        path = file.relative_to(root).as_posix()
        try:
            things.extend(things_of(file, path))
        except cpp_scanner.ScanError as error:
            findings.append(f"{path}:{error.line}: {error}: the scanner cannot follow this source")
    return things, findings

def is_breach(thing, allowed, known):
    most = known.get(thing.key(), LIMITS[thing.kind])
    return thing.figure > most and thing.key() not in allowed

def unused(things, allowed, known):
    """Entries of the lists that no thing needs."""
    needed = {thing.key() for thing in things if thing.figure > LIMITS[thing.kind]}
    for kind, path, name in [*allowed, *known]:
        if (kind, path, name) not in needed:
            yield f"{path}:1: {kind} {name}".rstrip() + f" is within {LIMITS[kind]} {UNITS[kind]}, or gone: its exception goes, too"

def findings_of(root, allowed, known):
    things, findings = collect(root)
    findings += [thing.text() for thing in things if is_breach(thing, allowed, known)]
    return findings + list(unused(things, allowed, known))

def print_table(root):
    things, findings = collect(root)
    for kind, limit in LIMITS.items():
        print(f"{kind}: {UNITS[kind]}, at most {limit}")
        largest = sorted((thing for thing in things if thing.kind == kind), key=lambda thing: -thing.figure)[:10]
        for thing in largest:
            print(f"  {thing.figure:5}  {thing.path}:{thing.line}  {thing.name}".rstrip())
    print("\n".join(findings), end="")

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the ten largest of each kind")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    arguments = parser.parse_args()
    if arguments.table:
        print_table(arguments.root)
        return 0
    findings = findings_of(arguments.root, ALLOWED, KNOWN) + units.findings_of(arguments.root, units.ALLOWED, units.KNOWN)
    print("\n".join(findings) or "all is small enough, and in its place")
    return 1 if findings else 0

if __name__ == "__main__":
    sys.exit(main())
