#!/usr/bin/env python3
"""Compiles the adapters that a wheel brings along, one for each minor version of PyTorch, into a folder.

    python3 packaging/adapters.py build/wheels/adapters --old-libraries build/wheels/old-libraries
    python3 packaging/adapters.py build/wheels/adapters --old-libraries build/wheels/old-libraries --torch 2.11.0
    python3 packaging/adapters.py build/wheels-aarch64/adapters --old-libraries build/wheels-aarch64/old-libraries --arch aarch64

The wheel of each version is fetched from PyPI, its headers and the names in its libraries are kept, and the rest is thrown
away: PyTorch is not installed. One adapter serves all patch releases of a minor version and all variants of CUDA. That is
checked here: it is compiled with the headers of every patch release and of CUDA 12 and 13, and its code must be the same to
the byte; and what it calls must be in the libraries of each.

With --torch there is one adapter, for this PyTorch. Where a Python has it, nothing of PyTorch is fetched, unless --arch is another
processor than this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from processors import MACHINE, PROCESSORS, tool  # noqa: E402

# Every release of the minor versions that have an adapter.
VERSIONS = ("2.10.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0")
TORCH_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so")

# The packages with the library and the headers of each CUDA runtime, and those of its headers that lie in crt.
RUNTIMES = (
    ("nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cuda-nvcc-cu12==12.8.93"),
    ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"),
)


class Release(NamedTuple):
    """The kept parts of a package: its headers, and the names that its libraries define."""

    name: str
    headers: Path
    symbols: frozenset[str]


class Installed(NamedTuple):
    """The PyTorch of a Python."""

    version: str  # without additions of builds: "2.11.0"
    build: str  # "2.11.0+cu130", and the commit
    cuda: str | None
    folder: str  # that has include and lib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--old-libraries", type=Path, help="as manylinux/old_libraries.py wrote them")
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "wheels" / "kept", help="what packages leave behind")
    parser.add_argument("--arch", choices=PROCESSORS, default=MACHINE, help="the processor (this machine's)")
    parser.add_argument("--torch", metavar="VERSION", help="one adapter, for this PyTorch; installed: that of --python")
    parser.add_argument("--python", default="python3", help="may have the PyTorch of --torch, whose headers serve then (python3)")
    parser.add_argument("--describe", action="store_true", help="print the name of the adapter of --torch, and what it is made of")
    arguments = parser.parse_args()
    version, found = None, None
    if arguments.torch:
        found = find_installed(arguments.python)
        version = require_version(arguments.torch, arguments.python, found)
        require_cuda(version, arguments.arch)
        found = found if arguments.arch == MACHINE and is_usable(found, version) else None
    if version and arguments.describe:
        print(adapter_name(version), found.build if found else version, "in", found.folder if found else "its wheel")
        return
    if arguments.folder is None or arguments.old_libraries is None:
        parser.error("a folder and --old-libraries are needed")
    make_adapters(arguments, [[version]] if version else by_minor(versions_for(arguments.arch)).values(), found)


def make_adapters(arguments: argparse.Namespace, versions: Iterable[list[str]], found: Installed | None) -> None:
    kept = arguments.kept.resolve()
    packages = Packages(kept, arguments.arch)
    runtimes = [packages.runtime(parts) for parts in RUNTIMES]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        compiler = Compiler(Path(scratch), arguments.old_libraries.resolve(), arguments.arch)
        for of_minor in versions:
            releases = [installed_torch(found) if found else packages.torch(version) for version in of_minor]
            target = arguments.folder / f"{adapter_name(of_minor[0])}.so"
            compiler.make_adapter(target, releases, runtimes)
            print(f"{target.name}: PyTorch {', '.join(release.name for release in releases)}", flush=True)


def versions_for(arch: str) -> list[str]:
    """The releases that have CUDA on this processor."""
    return [version for version in VERSIONS if version not in PROCESSORS[arch].without_cuda]


def by_minor(versions: Iterable[str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = defaultdict(list)
    for version in versions:
        result[version.rpartition(".")[0]].append(version)
    return result


def adapter_name(version: str) -> str:
    return f"torch_{'_'.join(version.split('.')[:2])}"


# ---- the PyTorch of --torch ------------------------------------------------------------------------------------------


def find_installed(python: str) -> Installed | None:
    code = (
        "import json, pathlib, torch; print(json.dumps([str(torch.__version__), torch.version.git_version, torch.version.cuda, "
        "str(pathlib.Path(torch.__file__).parent)]))"
    )
    process = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if process.returncode:
        return None
    version, commit, cuda, folder = json.loads(process.stdout.splitlines()[-1])
    return Installed(re.match(r"[\d.]*\d", version)[0], f"{version} {commit}", cuda, folder)


def is_usable(found: Installed | None, version: str) -> bool:
    return found is not None and found.version == version and found.cuda is not None


def require_version(wanted: str, python: str, found: Installed | None) -> str:
    """Returns the version that --torch names; ends the program where it names none that has an adapter."""
    version = wanted
    if wanted == "installed":
        if found is None:
            sys.exit(f"adapters.py: --torch is installed, but {python} has no torch: name a version, such as {VERSIONS[-1]}, "
                     "or put the Python that has it first on PATH")  # fmt: skip
        if found.cuda is None:
            sys.exit(f"adapters.py: --torch is installed, but the torch {found.version} of {python} is built without CUDA")
        version = found.version
    elif not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        sys.exit(f"adapters.py: --torch is {wanted!r}; it must be installed, or a version such as {VERSIONS[-1]}")
    if not (ROOT / "pytorch" / "adapter" / f"{adapter_name(version)}.cpp").is_file():
        served = ", ".join(by_minor(VERSIONS))
        sys.exit(f"adapters.py: --torch is {wanted}, and there is no adapter for PyTorch {version}; there is for {served}")
    return version


def require_cuda(version: str, arch: str) -> None:
    if version in PROCESSORS[arch].without_cuda:
        sys.exit(f"adapters.py: --torch is {version}, whose wheel for {arch} on PyPI has no CUDA; with CUDA are "
                 f"{', '.join(versions_for(arch))}")  # fmt: skip


def installed_torch(found: Installed) -> Release:
    folder = Path(found.folder)
    return Release(found.version, folder / "include", names_in((folder / "lib" / library for library in TORCH_LIBRARIES), MACHINE))


# ---- the kept parts of packages --------------------------------------------------------------------------------------


class Packages:
    """Fetches packages of PyPI for a processor, unless it did before, and keeps parts of them in a folder."""

    def __init__(self, kept: Path, arch: str) -> None:
        self._kept = kept
        self._arch = arch

    def torch(self, version: str) -> Release:
        return self._release(version, (f"torch=={version}",), "torch/include/", TORCH_LIBRARIES)

    def runtime(self, packages: tuple[str, ...]) -> Release:
        return self._release(packages[0].replace("==", "-"), packages, "/include/", ("libcudart.so.",))

    def _release(self, name: str, packages: tuple[str, ...], headers: str, libraries: tuple[str, ...]) -> Release:
        """Headers are what lies in a folder whose name ends with `headers`."""
        folder = self._kept / "+".join(package.replace("==", "-") for package in packages)
        if not (folder / "symbols").is_file():
            with tempfile.TemporaryDirectory(dir=make(folder.parent)) as scratch:
                symbols: set[str] = set()
                for package in packages:
                    with tempfile.TemporaryDirectory(dir=scratch) as fetched:
                        symbols |= self._keep(self._download(package, Path(fetched)), headers, libraries, Path(scratch))
                (Path(scratch) / "symbols").write_text("\n".join(sorted(symbols)) + "\n")
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                for part in ("include", "symbols"):
                    os.replace(Path(scratch) / part, folder / part)
        return Release(name, folder / "include", frozenset((folder / "symbols").read_text().split()))

    def _download(self, package: str, folder: Path) -> Path:
        platforms = [f"manylinux{policy}_{self._arch}" for policy in ("_2_28", "2014")]
        where = ["--python-version", "3.12", *(word for each in platforms for word in ("--platform", each))]
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", *where,
            "--dest", str(folder), package)  # fmt: skip
        (wheel,) = folder.glob("*.whl")
        return wheel

    def _keep(self, wheel: Path, headers: str, libraries: tuple[str, ...], folder: Path) -> set[str]:
        """Writes the headers to `folder`/include, and returns the names that the libraries define."""
        names: set[str] = set()
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.namelist():
                inside, found, path = entry.rpartition(headers) if headers.startswith("/") else entry.partition(headers)
                if found and not entry.endswith("/"):
                    target = folder / "include" / path
                    make(target.parent).joinpath(target.name).write_bytes(archive.read(entry))
                elif Path(entry).name.startswith(libraries) and ".so" in entry:
                    library = Path(archive.extract(entry, folder))
                    names |= names_in([library], self._arch)
                    library.unlink()
        return names


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def names_in(libraries: Iterable[Path], arch: str) -> frozenset[str]:
    """Returns the names that the libraries define."""
    table = run(tool("nm", arch), "--dynamic", "--defined-only", "--format=just-symbols", *map(str, libraries))
    return frozenset(line.partition("@")[0] for line in table.splitlines())


# ---- adapters --------------------------------------------------------------------------------------------------------


class Compiler:
    """Compiles adapters against the package's headers as a wheel has them, and links them with old libraries."""

    def __init__(self, scratch: Path, old_libraries: Path, arch: str) -> None:
        self._scratch = scratch
        self._arch = arch
        self._package = package_folder(scratch)
        self._libraries = [f"-B{old_libraries}", f"-L{old_libraries}", "-Wl,--exclude-libs,libcompat.a:libcompat_cxx.a"]
        sys.path.insert(0, str(self._package.parent))  # cachalot

    def make_adapter(self, target: Path, releases: list[Release], runtimes: list[Release]) -> None:
        """Writes the adapter, and beside it what it serves."""
        from cachalot._bindings import adapter as _adapter

        source = _adapter.SOURCES / f"{target.stem}.cpp"
        first = self._compile(source, releases[0], runtimes[0], "first")
        for each in releases:
            for with_runtime in runtimes:
                if (each, with_runtime) == (releases[0], runtimes[0]):
                    continue
                other = self._compile(source, each, with_runtime, "other")
                if self._code(other, each) != self._code(first, releases[0]):
                    sys.exit(f"adapters.py: {target.name} is other code with {each.name} and {with_runtime.name}")
        self._link(first, target)
        for each in releases:
            require_symbols(target, each, runtimes, self._arch)
        dependencies = first.with_suffix(".d").read_text()
        headers = _adapter.included_headers(dependencies, releases[0].headers)
        digests = {_adapter.digest_of(each.headers, headers) for each in releases}
        assert headers and None not in digests
        _adapter.Fit([each.name for each in releases], headers, sorted(filter(None, digests))).write(target)

    def _compile(self, source: Path, torch: Release, runtime: Release, name: str) -> Path:
        from cachalot._bindings import adapter as _adapter

        result = self._scratch / f"{name}.o"
        # Equal names of files in the code in any folder.
        names = [f"-ffile-prefix-map={torch.headers}=torch", f"-ffile-prefix-map={self._package}=cachalot"]
        run(tool("g++", self._arch), *_adapter.COMPILE_FLAGS, *names, *_adapter.include_flags(torch.headers, runtime.headers),
            "-MD", "-MF", str(result.with_suffix(".d")), "-c", str(source), "-o", str(result))  # fmt: skip
        return result

    @staticmethod
    def _code(compiled: Path, torch: Release) -> bytes:
        """Returns the object file without the version, which its source names."""
        return compiled.read_bytes().replace(torch.name.encode() + b"\0", b"version\0")

    def _link(self, compiled: Path, target: Path) -> None:
        from cachalot._bindings import adapter as _adapter

        compiler = tool("g++", self._arch)
        names = make(self._scratch / "names")  # libraries that have a name and nothing else
        for library in (*TORCH_LIBRARIES, _adapter.LIBRARY.name):
            run(compiler, "-shared", "-nostdlib", f"-Wl,-soname,{library}", "-x", "c", os.devnull, "-o", str(names / library))
        run(compiler, "-shared", "-s", *self._libraries, str(compiled), *_adapter.link_flags(names), "-o", str(target))


def package_folder(scratch: Path) -> Path:
    """Returns the Python package as a wheel has it, without the compiled parts."""
    package = scratch / "cachalot"
    shutil.copytree(ROOT / "pytorch" / "cachalot", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_version.py").write_text('__version__ = ""\n')
    shutil.copytree(ROOT / "pytorch" / "adapter", package / "native" / "adapter")
    for seam in ("plug.h", "host_plug.h"):
        shutil.copy(ROOT / "pytorch" / "plug" / seam, package / "native")
    shutil.copytree(ROOT / "allocator" / "include" / "cachalot", package / "native" / "include" / "cachalot")
    return package


def require_symbols(adapter: Path, torch: Release, runtimes: list[Release], arch: str) -> None:
    """Requires that the adapter's calls are in PyTorch's libraries, in each CUDA runtime, or in the plug-in."""
    table = run(tool("nm", arch), "--dynamic", "--undefined-only", "--with-symbol-versions", str(adapter))
    needed = {line.split()[-1] for line in table.splitlines() if line.split()[0] == "U"}
    ours = {name for name in needed if "@" not in name} - {"cachalot_plug", "cachalot_host_plug"}  # others are of the old libraries
    for name in sorted(ours - torch.symbols):
        without = [torch.name] + [each.name for each in runtimes if name not in each.symbols]
        if len(without) > 1:
            sys.exit(f"adapters.py: {adapter.name} needs {name}, which is not in {' nor in '.join(without)}")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
