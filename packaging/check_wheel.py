#!/usr/bin/env python3
"""Checks that a wheel has what it should, and that its compiled files run on every system of a manylinux policy."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "manylinux"))

from adapters import adapter_name, versions_for  # noqa: E402
from old_libraries import allowed_versions, number  # noqa: E402
from processors import MACHINE, PROCESSORS  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]

# Files of the wheel, by patterns of their names; {version} is any.
EXPECTED = (
    r"cachalot/__init__\.py",
    r"cachalot/_version\.py",
    r"cachalot/_start/enable\.py",
    r"cachalot/integrations/cupy\.py",
    r"cachalot/py\.typed",
    r"cachalot/SKILL\.md",
    r"cachalot/native/libcachalot_torch\.so",
    r"cachalot/native/plug\.h",
    r"cachalot/native/include/cachalot/options\.h",
    r"cachalot/native/include/cachalot/c_api\.h",
    r"cachalot-[\d.]+\.data/scripts/cachalot",
    r"cachalot-[\d.]+\.data/data/lib/cachalot/simulator/libcachalot_simulator\.so",
    r"cachalot-[\d.]+\.data/data/lib/cachalot/simulator/cudart/libcudart\.so\.12",
    r"cachalot-[\d.]+\.data/data/lib/cachalot/simulator/cudart/libcudart\.so\.13",
    r"cachalot-[\d.]+\.data/data/lib/cachalot/simulator/python/sitecustomize\.py",
    r"cachalot-[\d.]+\.data/data/lib/cachalot/simulator/python/cachalot_simulator/observer\.py",
    r"cachalot-[\d.]+\.data/data/share/bash-completion/completions/cachalot",
    r"cachalot-[\d.]+\.data/data/share/zsh/site-functions/_cachalot",
    r"cachalot-[\d.]+\.data/data/share/fish/vendor_completions\.d/cachalot\.fish",
    r"cachalot-[\d.]+\.dist-info/entry_points\.txt",
    r"cachalot-[\d.]+\.dist-info/licenses/(LICENSE|NOTICE)",
    r"cachalot-[\d.]+\.dist-info/licenses/packaging/licenses/third_party\.txt",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--policy", default="manylinux_2_28")
    parser.add_argument("--arch", choices=PROCESSORS, default=MACHINE, help="the processor (this machine's)")
    parser.add_argument("--most-bytes", type=int, default=25 << 20)
    parser.add_argument("--adapters", nargs="*", default=["all"], help="the ready adapters of the wheel: all, or names such as torch_2_11")
    arguments = parser.parse_args()
    wheel: Path = arguments.wheel
    tag = f"{arguments.policy}_{arguments.arch}"
    problems = [] if tag in re.split(r"[-.]", wheel.name) else [f"{wheel.name} is not tagged {tag}"]
    if wheel.stat().st_size > arguments.most_bytes:
        problems.append(f"{wheel.name} has {wheel.stat().st_size:,} bytes; {arguments.most_bytes:,} are the limit")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        names = archive.namelist()
        problems += [f"there is no {pattern}" for pattern in EXPECTED if not any(re.fullmatch(pattern, name) for name in names)]
        problems += problems_of_adapters(arguments.adapters, names, arguments.arch)
        if "cachalot/SKILL.md" in names and archive.read("cachalot/SKILL.md") != (ROOT / "SKILL.md").read_bytes():
            problems.append("cachalot/SKILL.md is not the repository's SKILL.md")
        archive.extractall(scratch)
        compiled = [name for name in names if is_elf(Path(scratch) / name)]
        for name in compiled:
            file = Path(scratch) / name
            problems += [f"{name}: {problem}" for problem in problems_of(file, arguments.policy, arguments.arch)]
    for problem in problems:
        print(f"check_wheel.py: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.2f} MiB, {len(compiled)} compiled files, {arguments.policy}_{arguments.arch}")


def problems_of_adapters(wanted: list[str], names: list[str], arch: str) -> list[str]:
    """The ready adapters that the wheel has too many and too few; each is a library and what it was made for."""
    if wanted == ["all"]:
        wanted = sorted({adapter_name(version) for version in versions_for(arch)})
    expected = {f"cachalot/native/prebuilt/{name}.{end}" for name in wanted for end in ("so", "json")}
    found = {name for name in names if name.startswith("cachalot/native/prebuilt/") and not name.endswith("/")}
    return [f"there is no {name}" for name in sorted(expected - found)] + [f"there is {name}" for name in sorted(found - expected)]


def is_elf(path: Path) -> bool:
    return path.is_file() and path.open("rb").read(4) == b"\x7fELF"


def problems_of(path: Path, policy: str, arch: str) -> list[str]:
    """Another processor, versions that the policy does not allow, and folders of the build machine that libraries are looked for in."""
    (machine,) = re.findall(r"Machine: +(.*)", run("readelf", "--file-header", str(path)))
    problems = [] if machine == PROCESSORS[arch].name_in_files else [f"is for {machine}"]
    needed = set(re.findall(r" UND \S+@(\w+_[\d.]+)", run("readelf", "--wide", "--dyn-syms", str(path))))
    allowed = allowed_versions(policy, arch)
    families = {version.rpartition("_")[0] for version in allowed}
    newer = {version for version in needed if version.rpartition("_")[0] in families} - allowed
    problems += [f"needs {version}" for version in sorted(newer, key=number)]
    dynamic = run("readelf", "--dynamic", str(path))
    problems += [f"looks for libraries in {folder}" for folder in re.findall(r"R(?:UN)?PATH.*\[(/.*)\]", dynamic)]
    own = {"libcuda.so.1"} if path.parent.name == "cudart" else set()  # the simulator's own, which has that name
    problems += [f"needs {name}" for name in re.findall(r"NEEDED.*\[(libcuda.*)\]", dynamic) if name not in own]
    return problems


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
