#!/usr/bin/env python3
"""Compares the ABI that c_api.h and the headers beside it declare with the description that is committed beside this file.

    tests/abi/check_abi.py [--header FILE] [--update | --self-test] [--cc COMPILER]

A shared library is made of the headers alone: a function with an empty body for each function, and for each constant an array of
that many characters, so that its value is part of a type. abidw describes it; abidiff compares the descriptions. c_api.cpp
includes the same header, so its functions have these types, and the test layers.exports compares what libcachalot.so exports.

Something new in the header is printed, and accepted once --update has written the description again. A change or removal is an
incompatible one: it fails unless the soname, which is in the description, changed as well.

Needs abidw and abidiff (Debian: abigail-tools). Without them the test is skipped, with a message.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
DESCRIPTION = FOLDER / "libcachalot.abi"
HEADER = ROOT / "c_api/include/cachalot/c_api.h"
FAILED = 3  # bits of abidiff's exit status: an error, or wrong usage


def soname():
    """The version as CMakeLists.txt has it; while it is 0.x, each minor version may break."""
    major, minor = re.search(r"project\(cachalot VERSION (\d+)\.(\d+)", (ROOT / "CMakeLists.txt").read_text()).groups()
    return f"libcachalot.so.{major}.{minor}"


def library_source(header):
    files = [header, *(file for file in sorted(HEADER.parent.glob("*.h")) if file != HEADER)]
    text = re.sub(r"/\*.*?\*/", "", "\n".join(file.read_text() for file in files), flags=re.DOTALL)
    functions = re.findall(r"^CACHALOT_API ([^;]+);", text, flags=re.MULTILINE)
    constants = [name for body in re.findall(r"enum \{(.*?)\}", text, flags=re.DOTALL)
                 for name in re.findall(r"^\s*(CACHALOT_\w+)", body, flags=re.MULTILINE)]
    if not functions or not constants:
        sys.exit(f"check_abi.py: {header}: no function or no constant found; the header's style is not as expected")
    lines = [f'#include "{header}"']
    lines += [f"CACHALOT_API {function} {{ __builtin_trap(); }}" for function in functions]
    lines += [f"CACHALOT_API char value_of_{name}[1 + {name}];" for name in constants]
    return "\n".join(lines) + "\n"


def describe(header, cc, path):
    """Writes the description of a header's ABI."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder) / "abi.c", pathlib.Path(folder) / "libcachalot.so"
        source.write_text(library_source(header))
        subprocess.run([cc, "-std=c99", "-g", "-fPIC", "-shared", "-nostdlib", f"-Wl,-soname,{soname()}",
                        f"-I{ROOT / 'allocator/include'}", f"-I{HEADER.parents[1]}", str(source), "-o", str(library)], check=True)
        subprocess.run(["abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-architecture", "--out-file",
                        str(path), str(library)], check=True)
    path.write_text(re.sub(r" path='[^']*' language='[^']*'", "", path.read_text()))


def compare(before, after):
    """abidiff's words, and whether something that was there has changed or is gone although the soname is the same."""
    done = subprocess.run(["abidiff", str(before), str(after)], capture_output=True, text=True)
    if done.returncode & FAILED:
        sys.exit(f"check_abi.py: abidiff: {done.stderr}")
    counts = re.findall(r"(\d+) (?:Removed|Changed)", done.stdout)
    is_broken = "SONAME changed" not in done.stdout and any(count != "0" for count in counts)
    return done.stdout, is_broken


def check(header, cc):
    with tempfile.TemporaryDirectory() as folder:
        now = pathlib.Path(folder) / "now.abi"
        describe(header, cc, now)
        words, is_broken = compare(DESCRIPTION, now)
    if not words:
        return 0
    print(words)
    print("the C ABI has changed what was there: the soname must change, too (RELEASING.md)" if is_broken
          else "the C ABI is not as described: tests/abi/check_abi.py --update describes it again")
    return 2 if is_broken else 1


# Each changes one thing of the header; the status that check() must return.
PLANTED = {
    "nothing": (None, "", 0),
    "a function is new": ("CACHALOT_API const char* cachalot_version(void);",
                          "CACHALOT_API const char* cachalot_version(void);\nCACHALOT_API int cachalot_new(int device);", 1),
    "a function is gone": ("CACHALOT_API const char* cachalot_version(void);", "", 2),
    "a parameter has another type": ("cachalot_empty_cache(int device)", "cachalot_empty_cache(long device)", 2),
    "a constant has another value": ("CACHALOT_E_CUDA = 3", "CACHALOT_E_CUDA = 6", 2),
    "a member moves": ("  size_t offset; ", "  int more;\n  size_t offset; ", 2),
}


def self_test(cc):
    text = HEADER.read_text()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (what, (before, after, expected)) in enumerate(PLANTED.items()):
            header = pathlib.Path(folder) / f"c_api_{number}.h"
            if before is not None and before not in text:
                sys.exit(f"check_abi.py: {HEADER} does not have {before!r}")
            header.write_text(text if before is None else text.replace(before, after, 1))
            status = check(header, cc)
            if status != expected:
                print(f"{what}: status {status}, not {expected}")
                failed += 1
    print(f"{len(PLANTED) - failed} of {len(PLANTED)} changes are told as they should be")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--header", type=pathlib.Path, default=HEADER)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if not options.header.is_file():
        sys.exit(f"check_abi.py: --header {options.header}: there is no such file")
    if shutil.which(options.cc) is None:
        sys.exit(f"check_abi.py: --cc {options.cc}: there is no such program")
    for tool in ("abidw", "abidiff"):
        if shutil.which(tool) is None:
            print(f"skipped: there is no {tool} on PATH (Debian: abigail-tools)")
            return 0
    if options.update:
        describe(options.header, options.cc, DESCRIPTION)
        return 0
    return self_test(options.cc) if options.self_test else check(options.header, options.cc)


if __name__ == "__main__":
    sys.exit(main())
